"""Simulated models: a deterministic language, a runner and an engine without weights."""
