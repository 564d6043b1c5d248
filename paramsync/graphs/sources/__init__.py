"""What people have, one module for each kind of it, as a Draft: a graph, its variables and what they are called."""
