"""One folder for each protocol: translates, calls, maps errors."""
