"""The trainer's side: when a version is due, its values at one step, and the thread that writes it."""
