"""What both programs share: flags, logs, signals, traces and process metrics."""
