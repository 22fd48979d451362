"""GGUF files: their header, and their tokenizer in the form that a router reads."""
