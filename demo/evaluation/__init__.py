"""What the pair can do: accuracy, agreement, forward costs and what speculation gains."""
