"""Configuration of one drafter replica."""

from pydantic import Field

from services.engine.settings import ModelSettings


class DrafterConfig(ModelSettings):
    """What a drafter replica serves, where it listens, and who helps it.

    Attributes:
        registry: host:port of the registry that knows the sub-drafters.
        sub_drafter: host:port of a sub-drafter, where there is no registry.
        max_draft: Longest draft that one step may ask for.
    """

    registry: str | None = None
    sub_drafter: str | None = None
    max_draft: int = Field(64, ge=1, le=1024)
