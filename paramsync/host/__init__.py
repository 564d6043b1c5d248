"""The machine: files, memory, descriptors, the kernel's calls, a few threads, the terminal."""
