"""The runner of vLLM: its workers driven by our core; vLLM is imported only when one starts."""
