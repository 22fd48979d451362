"""How long the next draft is: always the same, or what gives the most tokens per second at present."""
