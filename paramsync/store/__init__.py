"""A store: the directory where publisher and followers meet, from its file names to commit, prune and recovery."""
