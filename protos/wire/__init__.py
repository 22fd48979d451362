"""Conversions between the messages of the protos and the types of `fly`, errors included."""
