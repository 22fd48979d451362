"""KV memory: who holds how much of it, how it is laid out, and which beginnings are there already."""
