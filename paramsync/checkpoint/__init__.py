"""One checkpoint: the writer and its pool of files, held data files, the reader, work on the bytes of tensors."""
