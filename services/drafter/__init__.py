"""The drafter service: drafts with a small model, accelerated by proposals of a sub-drafter."""
