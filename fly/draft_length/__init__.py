"""Draft length control: a fixed length, or the length with the most tokens per second at the present load."""
