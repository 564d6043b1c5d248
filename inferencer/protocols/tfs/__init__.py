"""TensorFlow Serving's gRPC services and REST API."""
