"""The HTTP port, by which TensorFlow Serving's REST API, KServe's second protocol, health and metrics are asked."""
