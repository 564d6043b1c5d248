"""The training program, and what people add to their own trainers."""
