"""Reads GraphDefs without TensorFlow, and lists the ops that a graph may use."""
