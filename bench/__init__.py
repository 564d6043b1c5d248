"""Benchmarks. `python -m bench --help` lists them, and bench/README.md says how they measure."""
