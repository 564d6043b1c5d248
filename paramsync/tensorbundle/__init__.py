"""Reads and writes the bytes of TensorFlow's checkpoint files: tables, the index, strings, slices, checksums."""
