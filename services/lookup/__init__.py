"""The look-up service: a drafter without a model, or a sub-drafter, which saves forwards of a drafter."""
