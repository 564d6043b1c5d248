"""The process that people start: follows stores, checks versions, and starts the workers that answer from them."""
