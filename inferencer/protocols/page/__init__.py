"""The operator's page and its API: the state of a server's models, and actions on them."""
