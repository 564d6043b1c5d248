"""Versions in memory, and calls of their graphs: for one request, or for the rows of several requests together."""
