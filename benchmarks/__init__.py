"""Benchmarks: each prints a table with a progress bar and can write JSON."""
