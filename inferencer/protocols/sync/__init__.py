"""Our own Sync service for operators."""
