"""Benchmarks: each has main(argv) and prints a table or JSON."""
