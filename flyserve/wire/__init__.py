"""Conversions between the messages of the protos and the types of `flyserve.core`, errors included."""
