"""Shared by the programs: flags, logs, signals, metrics of the process."""
