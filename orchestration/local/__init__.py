"""A whole deployment on one machine."""
