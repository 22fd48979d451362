"""Histogram buckets that several processes share."""

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""For durations of one step."""

LONG_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
"""For durations of a whole request."""

TOKENS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 15, 20, 25, 32, 48, 64)
"""For lengths of drafts, in tokens."""
