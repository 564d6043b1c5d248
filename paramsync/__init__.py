"""What trainer, inferencer and operator share. Importing it never imports TensorFlow."""
