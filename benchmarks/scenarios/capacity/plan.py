"""The simulated models, the deployments, the ways of decoding, and for how long."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import PLAIN as PLAIN_DECODING
from benchmarks.harness.client import speculation
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.scenarios.capacity.hardware import H200, LLAMA_8B, LLAMA_70B, Replica
from fly.types import Mode
from services.engine.simulation.language import SimulatedConfig

PLACEMENTS, REPLICAS, ROUTER = "placements", "replicas", "router"
CO_LOCATED = "co-located"
PAUSE_S = 1e-3
"""Time for which a co-located target waits for the drafts of further sequences."""
DRAFT_LENGTH = 15
PLAIN, FLY = "plain", f"FLy, drafts of {DRAFT_LENGTH}"
SETTINGS = {
    PLAIN: PLAIN_DECODING,
    FLY: speculation(Mode.FLY, DRAFT_LENGTH),
}
"""Ways of decoding by name, in the order of the tables."""
ROUTER_SETTINGS = (PLAIN, FLY)
AGREEMENT = 0.925
"""Agreement of drafter and target by position: gives a tau of 10 with drafts of 15 under the default rule."""
LANGUAGE = SimulatedConfig(response_tokens=(60, 180), vocab_size=1024, end_id=0)
"""The simulated text; the token that ends a response is that of the demo's tokenizer, which routers use."""
MAX_BATCH_TOKENS = 1024
"""Token rows of one forward; a chunk of a prefill has at most half as many."""


@dataclass(frozen=True, slots=True)
class Models:
    """The pair, each model with its GPUs."""

    target: Replica
    drafter: Replica

    @property
    def target_model(self) -> SimulatedConfig:
        """The simulated target."""
        return self.target.simulated(LANGUAGE)

    @property
    def drafter_model(self) -> SimulatedConfig:
        """The simulated drafter."""
        return self.drafter.simulated(replace(LANGUAGE, agreement=AGREEMENT))


@dataclass(frozen=True, slots=True)
class Levels:
    """Numbers of clients that are measured in turn, on one clock.

    Attributes:
        dilation: Real seconds per simulated second.
        settle_s: Simulated seconds before anything counts.
        measure_s: Simulated seconds in which tokens count.
    """

    clients: tuple[int, ...]
    dilation: float
    settle_s: float
    measure_s: float


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
        groups: Groups of GPUs of a placement; each holds a target, a drafter, or, co-located, both.
        drafters: Groups of the tier that hold a drafter; the others hold targets.
        shards: GPUs of a group, and of a target replica.
        bandwidth_share: Share of a GPU's memory bandwidth that forwards of few rows reach.
        context_tokens: Mean context of a sequence.
        draft_length: Tokens of a draft in the placements.
        ahead_sequences: Most open sequences with which a drafter of the tier drafts ahead.
        delays_ms: Delays of a message between router and tier, each way.
        prompt_tokens: Prompt tokens of every request; no cache has them.
        floors: Tokens per second that every client should have.
        levels: Numbers of clients, with the times of their windows.
        repeat: Windows of every number of clients, and restarts for the router's CPU time.
        sizes: Targets of the deployments that are compared; the largest one is measured alone.
        streams: Concurrent requests per target.
        fewer_streams: The same of further deployments with 4 targets.
        fewer_drafters: Drafters of further deployments with 4 targets.
        routers: Routers of the largest deployment; smaller ones have as many in proportion, at least one.
        settle_s: Simulated seconds before anything counts.
        measure_s: Simulated seconds in which tokens count.
        dilations: Real seconds per simulated second, of the smaller deployments and of the largest.
        blocks: Blocks of requests to the router under each setting, after each restart.
        requests: Requests of one block, eight at a time.
    """

    groups: Annotated[int, Field(ge=2)] = 4
    drafters: Annotated[int, Field(ge=1)] = 1
    shards: Annotated[int, Field(ge=2, le=8)] = 2
    bandwidth_share: Annotated[float, Field(gt=0, le=1)] = H200.bandwidth_share
    context_tokens: int = 2048
    draft_length: int = 8
    ahead_sequences: float = 8
    delays_ms: tuple[float, ...] = (0.0, 1.0, 10.0)
    prompt_tokens: int = 128
    floors: tuple[float, ...] = (120.0, 100.0, 80.0, 60.0)
    levels: Annotated[tuple[Levels, ...], Quick((Levels((4, 16), 8.0, 0.3, 0.6),))] = (
        Levels((1, 2, 4, 8), 8.0, 0.4, 2.0),
        Levels((16, 32, 64), 24.0, 0.3, 0.5),
    )
    repeat: Annotated[int, Field(ge=1), Quick(1)] = 4
    sizes: Annotated[tuple[int, ...], Quick((1, 2))] = (1, 4, 16, 64)
    streams: Annotated[int, Field(ge=1), Quick(8)] = 31
    fewer_streams: Annotated[tuple[int, ...], Quick(())] = (1, 8)
    fewer_drafters: Annotated[tuple[int, ...], Quick(())] = (1, 2)
    routers: Annotated[int, Field(ge=1), Quick(1)] = 8
    settle_s: Annotated[float, Quick(0.3)] = 0.8
    measure_s: Annotated[float, Quick(0.6)] = 1.0
    dilations: Annotated[tuple[float, float], Quick((5.0, 5.0))] = (70.0, 100.0)
    blocks: Annotated[int, Quick(2)] = 5
    requests: Annotated[int, Quick(8)] = 48

    def models(self, drafter_gpus: int) -> Models:
        """Return Llama 70B on the GPUs of a group, with Llama 8B on some as its drafter."""
        gpu = replace(H200, bandwidth_share=self.bandwidth_share)
        drafter = Replica(LLAMA_8B, gpu, drafter_gpus, self.context_tokens)
        return Models(Replica(LLAMA_70B, gpu, self.shards, self.context_tokens), drafter)

    @property
    def placements(self) -> dict[str, float]:
        """Delay in seconds by placement; that of the co-located pairs comes first."""
        return {CO_LOCATED: 0.0, **{f"tier, {delay:g} ms": 1e-3 * delay for delay in self.delays_ms}}

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
            Stage((largest,), ROUTER_SETTINGS, self.dilations[1]),
        )
