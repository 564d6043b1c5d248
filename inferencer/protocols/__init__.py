"""The protocols, a folder each. A protocol translates requests, calls the batcher, and maps errors to statuses."""
