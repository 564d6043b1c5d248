"""The models of a server, their metrics, and access to them."""
