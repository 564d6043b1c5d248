"""The models that a server answers for, and what is counted of them."""
