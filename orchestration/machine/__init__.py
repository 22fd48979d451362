"""The share of a machine that each tier of a deployment gets."""
