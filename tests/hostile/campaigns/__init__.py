"""What runs as processes of its own in the campaigns. Needs no TensorFlow, so that a thousand starts are affordable."""
