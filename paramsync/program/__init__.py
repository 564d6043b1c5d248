"""What the programs have in common: flags, signals, logs, metrics of the process."""
