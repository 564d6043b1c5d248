"""Runs a request at once when it can, else batches it with others."""
