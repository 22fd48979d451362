"""The target service: scores drafts with the large model."""
