"""The OpenAI-compatible face of the router: completions, chat, models, health, over HTTP."""
