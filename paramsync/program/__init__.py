"""Shared by the programs: flags, logs, signals, metrics of the process, and a filter for TensorFlow's noise."""
