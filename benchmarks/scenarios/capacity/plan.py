"""The simulated models, the deployments, the ways of decoding, and for how long."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import PLAIN as PLAIN_DECODING
from benchmarks.harness.client import speculation
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.scenarios.capacity.hardware import BANDWIDTH_SHARE, Replica
from flyserve.core.types import Mode
from services.engine.simulation.language import SimulatedConfig

DRAFT_LENGTH = 15
PLAIN, FLY = "plain", f"FLy, drafts of {DRAFT_LENGTH}"
SETTINGS = {PLAIN: PLAIN_DECODING, FLY: speculation(Mode.FLY, DRAFT_LENGTH)}
"""Ways of decoding by name, in the order of the tables."""
AGREEMENT = 0.925
"""Agreement of drafter and target by position: gives a tau of 10 with drafts of 15 under the default rule."""
LANGUAGE = SimulatedConfig(response_tokens=(60, 180), vocab_size=1024, end_id=0)
"""The simulated text; the token that ends a response is that of the demo's tokenizer, which routers use."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A number of replicas, and the load on them.

    Attributes:
        targets: Replicas of the target.
        drafters: Replicas of the drafter, for all targets together.
        routers: Routers, each connected to all replicas.
        streams: Concurrent requests, over all routers.
    """

    targets: int
    drafters: int
    routers: int
    streams: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Deployments that are measured side by side, under one setting after the other.

    Attributes:
        dilation: Real seconds per simulated second.
    """

    deployments: tuple[Deployment, ...]
    settings: tuple[str, ...]
    dilation: float


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The deployments, and the amount of measuring.

    Attributes:
        shards: GPUs of a target replica.
        bandwidth_share: Share of a GPU's memory bandwidth that forwards of few rows reach.
        context_tokens: Mean context of a sequence.
        prompt_tokens: Prompt tokens of every request; no cache has them.
        sizes: Targets of the deployments that are compared; the largest one is measured alone.
        streams: Concurrent requests per target.
        fewer_streams: The same of further deployments with 4 targets.
        fewer_drafters: Drafters of further deployments with 4 targets.
        routers: Routers of the largest deployment; smaller ones have as many in proportion, at least one.
        settle_s: Simulated seconds before anything counts.
        measure_s: Simulated seconds in which tokens count.
        dilations: Real seconds per simulated second, of the smaller deployments and of the largest.
    """

    shards: Annotated[int, Field(ge=2, le=8)] = 2
    bandwidth_share: Annotated[float, Field(gt=0, le=1)] = BANDWIDTH_SHARE
    context_tokens: int = 2048
    prompt_tokens: int = 128
    sizes: Annotated[tuple[int, ...], Field(min_length=2), Quick((1, 2))] = (1, 4, 16, 64)
    streams: Annotated[int, Field(ge=1), Quick(8)] = 31
    fewer_streams: Annotated[tuple[int, ...], Quick(())] = (1, 8)
    fewer_drafters: Annotated[tuple[int, ...], Quick(())] = (1, 2)
    routers: Annotated[int, Field(ge=1), Quick(1)] = 8
    settle_s: Annotated[float, Quick(0.3)] = 0.8
    measure_s: Annotated[float, Quick(0.6)] = 1.0
    dilations: Annotated[tuple[float, float], Quick((8.0, 8.0))] = (120.0, 200.0)

    @property
    def target(self) -> Replica:
        """Llama 70B on the GPUs of a replica."""
        return Replica("Llama 3.3 70B", 70.6e9, 80, self.shards, self.context_tokens, self.bandwidth_share)

    @property
    def drafter(self) -> Replica:
        """Llama 8B on one GPU."""
        return Replica("Llama 3.1 8B", 8.03e9, 32, 1, self.context_tokens, self.bandwidth_share)

    def deployment(self, targets: int) -> Deployment:
        """Return a deployment with one drafter per target."""
        routers = max(1, round(self.routers * targets / max(self.sizes)))
        return Deployment(targets, targets, routers, self.streams * targets)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All smaller deployments side by side, then the largest one by itself."""
        *smaller, largest = (self.deployment(targets) for targets in self.sizes)
        side = self.deployment(4)
        loads = (replace(side, streams=streams * side.targets) for streams in self.fewer_streams)
        lean = (replace(side, drafters=drafters) for drafters in self.fewer_drafters)
        return (
            Stage((*smaller, *loads, *lean), tuple(SETTINGS), self.dilations[0]),
            Stage((largest,), tuple(SETTINGS), self.dilations[1]),
        )
