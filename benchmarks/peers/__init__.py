"""FlyServe beside transformers: the same prompts, one thread per process, interleaved in one run."""
