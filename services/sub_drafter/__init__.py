"""The sub-drafter service: guesses by look-up, to speed the drafter up."""
