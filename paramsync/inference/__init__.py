"""Versions in memory, and their computation, alone or with the rows of several requests."""
