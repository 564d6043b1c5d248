"""Jobs of the training program."""
