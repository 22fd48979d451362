"""Admission control: limit concurrent and queued requests, fairly between tenants."""
