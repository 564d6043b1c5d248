"""The server's side of HTTP/2: bytes in and events out, without I/O, clock or threads."""
