"""The sub-drafter service: proposals by look-up, to speed the drafter up."""
