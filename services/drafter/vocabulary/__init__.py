"""Drafts for a target with another vocabulary: token streams are mapped by their bytes, at the drafter."""
