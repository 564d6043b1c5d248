"""Files, memory and processes of the machine, and calls of its kernel and C library."""
