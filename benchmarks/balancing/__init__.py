"""How well a balancing policy finds cached prefixes, and how evenly it spreads the work."""
