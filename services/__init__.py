"""The services that speculate together, and what they share."""
