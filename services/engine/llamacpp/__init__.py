"""llama.cpp as a runner: GGUF files, computed by libllama."""
