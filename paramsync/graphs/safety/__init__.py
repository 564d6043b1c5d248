"""Whether a graph that somebody else made may be built: only ops known to be safe, and no more than memory can bear."""
