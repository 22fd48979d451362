"""Benchmarks: one harness, one scenario per report in docs/benchmarks."""
