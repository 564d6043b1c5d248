"""TensorFlow Serving's own test and example models against our server; nothing of a checkout of it is kept here."""
