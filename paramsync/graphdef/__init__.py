"""GraphDefs without TensorFlow: which ops a graph may use, and how its names are read."""
