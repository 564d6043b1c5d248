"""TensorFlow's checkpoint files as bytes: tables, the index, strings, slices, checksums. Knows nothing of stores."""
