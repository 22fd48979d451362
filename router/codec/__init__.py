"""The public service's messages to domain objects and back."""
