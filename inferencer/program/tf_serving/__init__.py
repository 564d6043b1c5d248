"""TensorFlow Serving's command line and files for our inferencer, so that a deployment moves by changing its image."""
