"""From a Draft to a pure function: cut to what is needed, variables and tables become arguments, nothing is kept."""
