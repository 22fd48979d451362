"""KV memory: which sequences hold how much of it, how it is laid out, and which prefixes are cached."""
