"""Names of a deployment's actors on Ray; imports no Ray."""

NAMESPACE_PREFIX = "flyserve-"
"""Prefix of the namespace that holds a deployment's named actors; its name follows."""
CONTROLLER_ACTOR = "controller"
