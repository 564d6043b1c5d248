"""A version in memory and how it is computed, alone or with the rows of several requests."""
