"""The chart, and what writes those of its files that are written from code."""
