"""The drafter service: proposes drafts with a small model, sped up by a sub-drafter."""
