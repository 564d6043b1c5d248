"""The operator's commands. None of them imports TensorFlow."""
