"""The serving program: its start, its server, its end."""
