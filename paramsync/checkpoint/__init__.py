"""A checkpoint: its writer with a pool of files, its reader with locked data files, work on the bytes of tensors."""
