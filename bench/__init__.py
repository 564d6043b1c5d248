"""Benchmarks: `python -m bench --help` lists them, bench/README.md says how they measure. Each prints a table or one
JSON object."""
