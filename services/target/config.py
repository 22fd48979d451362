"""Configuration of one target replica."""

from services.engine.settings import ModelSettings


class TargetConfig(ModelSettings):
    """What a target replica serves and where it listens."""
