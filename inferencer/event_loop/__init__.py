"""The server's event loop: when it rests, how it is woken, on which processor it runs."""
