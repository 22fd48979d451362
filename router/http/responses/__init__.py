"""OpenAI's Responses API, without state: each request has its whole conversation."""
