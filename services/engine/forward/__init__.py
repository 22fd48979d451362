"""Forwards of real models: one flat batch through ragged attention or a lean path, and the proof at load."""
