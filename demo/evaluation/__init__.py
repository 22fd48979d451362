"""Evaluation of the pair: accuracy, agreement, forward costs and the gain of speculation."""
