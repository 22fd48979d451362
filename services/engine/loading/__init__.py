"""Load models from folders: supported architectures, weight files, memory bandwidth."""
