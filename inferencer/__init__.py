"""The serving program."""
