"""One checkpoint: where its tensors go, the data files and who holds them, how it is written and read."""
