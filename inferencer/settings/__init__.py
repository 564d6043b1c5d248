"""What may be said to the server: flags, a file of models, and what is wrong with them."""
