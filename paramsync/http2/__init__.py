"""HTTP/2 of a server: bytes in and events out, without I/O, clock or threads."""
