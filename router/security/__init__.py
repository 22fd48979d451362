"""API keys: the caller of a request, its quotas, and the isolation of its cache."""
