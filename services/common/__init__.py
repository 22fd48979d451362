"""Plumbing that every process shares: config, codec, errors on the wire, host, channels."""
