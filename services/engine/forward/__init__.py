"""Forwards of real models: one flat batch, ragged or fused, and the check at load against transformers."""
