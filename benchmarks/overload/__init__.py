"""What a router does at several times the load that its replicas can carry, and after it."""
