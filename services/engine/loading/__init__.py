"""Load models from folders: supported architectures, weight files, the costs of forwards."""
