"""From what a client asks for to a request that is checked and complete."""
