"""The amount of measuring of the scenario `open_loop`, and its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from benchmarks.harness.command import BasePlan, Quick
from benchmarks.scenarios.open_loop.aiperf import Export

DRAFT_LENGTH = 15
BASELINE, FLY = "plain", f"FLy, drafts of {DRAFT_LENGTH}"
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    BASELINE: {"mode": "plain"},
    FLY: {"mode": "fly", "draft_length": DRAFT_LENGTH},
}
"""The field `speculation` of the requests, by the name of the setting."""

Runs = dict[str, list[Export]]
"""Runs of one load, by setting."""


class Load(NamedTuple):
    """A rate of requests, as a share of the requests per second that plain decoding completes at most.

    Attributes:
        smoothness: Shape of the gamma distribution of the times between requests; 1 is a Poisson process.
    """

    share: float
    smoothness: float = 1.0

    @property
    def name(self) -> str:
        """Name in tables."""
        name = f"{self.share:g} of the capacity"
        return name if self.smoothness == 1 else f"{name}, in bursts"


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        shares: Rates, as shares of the requests per second that plain decoding completes at most.
        burst_share, burst_smoothness: The rate and smoothness of the run with bursts.
        seconds: Time over which the requests of a run arrive.
        callers, capacity_requests: Requests that are open at once while the capacity is measured, and all.
        first_ms, token_ms: Limits of a good response: time to the first token, and per token after it.
        places: Sequences that each replica holds.
        repeat: Runs of every setting at every load.
    """

    shares: Annotated[tuple[float, ...], Field(min_length=1), Quick((0.5,))] = (0.5, 0.8, 1.1)
    burst_share: float = 0.5
    burst_smoothness: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seconds: Annotated[float, Field(gt=0), Quick(4.0)] = 30.0
    callers: Annotated[int, Field(ge=1), Quick(4)] = 16
    capacity_requests: Annotated[int, Field(ge=2), Quick(8)] = 128
    first_ms: float = 500.0
    token_ms: float = 25.0
    places: int = 32
    repeat: Annotated[int, Quick(1)] = 2

    @property
    def loads(self) -> list[Load]:
        """All loads, in their order."""
        return [*(Load(share) for share in self.shares), Load(self.burst_share, self.burst_smoothness)]
