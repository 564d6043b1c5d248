"""TensorFlow Serving's REST API, health and metrics over HTTP."""
