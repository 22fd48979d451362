"""Commands that talk to a deployment's controller through Ray."""
