"""Starts the inferencer with TensorFlow Serving's flags and files, so that a deployment only changes its image."""
