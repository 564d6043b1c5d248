"""Shared by both programs: flags, logs, signals, traces, metrics of the process."""
