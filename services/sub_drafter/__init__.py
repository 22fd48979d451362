"""The sub-drafter service: proposals by look-up, which save forwards of the drafter."""
