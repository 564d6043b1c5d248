"""The HTTP port: TensorFlow Serving's REST API, KServe's second protocol, health, metrics and the page."""
