"""Runs a request at once when it can; otherwise batches it with others."""
