"""Benchmarks: `python -m bench publish | restore | delta`, each against a copy of the same bytes and, where there are
any, the other ways to do it. Each prints a table, or one JSON object. How they measure is in bench/README.md."""
