"""Model execution: loading, forwards, KV memory, head, scheduling, sharding, and a simulated engine."""
