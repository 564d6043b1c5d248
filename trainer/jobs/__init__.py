"""What the training program can train."""
