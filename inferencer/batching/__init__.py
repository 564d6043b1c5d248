"""Runs requests: each at once if possible, otherwise in a batch with others."""
