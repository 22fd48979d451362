"""Documents, and what writes those of them that are written from code."""
