"""Commands that call a deployment's controller through Ray."""
