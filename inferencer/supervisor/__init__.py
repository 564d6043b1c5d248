"""The process that people start: it follows stores, checks versions, and starts workers that answer from them."""
