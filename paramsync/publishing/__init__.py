"""The trainer's side: decides when a version is due, pins the values of one step, and writes them on a thread."""
