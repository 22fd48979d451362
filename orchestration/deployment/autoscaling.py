"""The section `autoscaling` of a tier: limits and delays with which its size follows its load."""

from pydantic import Field, ValidationInfo, field_validator

from services.common.config import Config


class Autoscaling(Config):
    """Limits and delays with which the number of a tier's replicas follows its load.

    The load of a replica is the share of its `max_sequences` that are open or queued, or the share of its KV
    cache that these take, whichever is higher. Sequences that wait in routers are added to the load of the
    tier.
    """

    min: int = Field(1, ge=0, le=1024)
    """Fewest replicas, kept while the tier is idle. With 0, which only `target` takes, requests wait in the
    routers for `router.replica_wait_s` while a replica starts."""

    max: int = Field(ge=1, le=1024)
    """Most replicas."""

    target_load: float = Field(0.7, ge=0.01, le=1)
    """Load per replica to aim at; the rest absorbs new work while replicas start."""

    tolerance: float = Field(0.1, ge=0, le=0.5)
    """Share of the target by which the load may differ from it without any change."""

    upscale_delay_s: float = Field(5.0, ge=0, le=3600)
    """Seconds that a higher load must last before replicas are added."""

    downscale_delay_s: float = Field(300.0, ge=1, le=86_400)
    """Seconds during which a replica must not have been needed before it is drained; longer than the pauses
    of the traffic."""

    @field_validator("max")
    @classmethod
    def _is_not_below_min(cls, value: int, info: ValidationInfo) -> int:
        if value < (fewest := info.data.get("min", 1)):
            raise ValueError(f"must be at least min, which is {fewest}")
        return value

    def within(self, number: int) -> int:
        """Return the nearest number within the limits."""
        return max(self.min, min(number, self.max))
