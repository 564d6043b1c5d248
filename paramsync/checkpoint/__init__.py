"""One checkpoint: placement, the writer and its pool of files, held data files, the reader, the seal."""
