"""A process that maps versions and answers from them. Knows nothing of stores, nor of following."""
