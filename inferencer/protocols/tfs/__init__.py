"""TensorFlow Serving's gRPC services."""
