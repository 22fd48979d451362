"""Requests: validation, defaults, speculation plan, warnings."""
