"""What the library asks of the machine: files, the kernel, the C library, threads."""
