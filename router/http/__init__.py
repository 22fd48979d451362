"""OpenAI-compatible HTTP API of the router: completions, chat, models, health."""
