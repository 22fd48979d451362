"""vLLM as an engine: scoring requests, ordinary generation, places; vLLM is imported only when one starts."""
