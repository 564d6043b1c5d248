"""The settings of the server: flags, a file of models, and their checks."""
