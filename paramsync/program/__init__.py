"""What both programs share: flags, logs, signals, traces, metrics of the process."""
