"""FlyServe."""
