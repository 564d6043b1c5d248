"""The trainer's side: decides when a version is due, takes a snapshot of one step, and writes it on another thread."""
