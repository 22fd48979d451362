"""What speeds drafting up: sub-drafters, drafting ahead, and the choice of the draft's length."""
