"""Model execution: loading, ragged attention, KV arena, head, batching, and a simulated engine."""
