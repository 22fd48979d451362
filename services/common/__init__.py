"""Plumbing that several processes need: hosts, streams, endpoint sources, security, configuration, telemetry.

A module belongs here if at least two of the services, the router and the orchestration import it. What one of
them alone needs lives in that one's own package.
"""
