"""Where versions come from: checkpoints that we or TensorFlow wrote, or SavedModels in numbered directories."""
