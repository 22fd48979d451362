"""The simulation: the models, the deployments, the ways of decoding, and for how long."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import PLAIN as PLAIN_DECODING
from benchmarks.harness.client import speculation
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.scenarios.simulate.hardware import H200, LLAMA_8B, LLAMA_70B, Replica
from fly.types import Mode
from services.engine.simulation.language import SimulatedConfig

DRAFT_LENGTH = 15
PLAIN, FLY, GOODPUT = "plain", f"FLy, drafts of {DRAFT_LENGTH}", "FLy, goodput"
SETTINGS = {
    PLAIN: PLAIN_DECODING,
    FLY: speculation(Mode.FLY, DRAFT_LENGTH),
    GOODPUT: speculation(Mode.FLY, DRAFT_LENGTH, is_goodput=True),
}
"""Ways of decoding by name, in the order of the tables."""
ROUTER_SETTINGS = (PLAIN, FLY)
AGREEMENT = 0.925
"""Agreement of drafter and target by position: gives a tau of 10 with drafts of 15 under the default rule."""
LANGUAGE = SimulatedConfig(response_tokens=(60, 180), vocab_size=1024, end_id=0)
"""The simulated text; the token that ends a response is that of the demo's tokenizer, which routers use."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of the replicas of a deployment, as shares of what its streams need.

    Attributes:
        target_places: Sequences of the targets.
        target_memory: KV memory of the targets; None is all that fits beside the weights.
        drafter_places: Sequences of the drafters.
    """

    target_places: float = 1.0
    target_memory: float | None = None
    drafter_places: float = 1.0


AMPLE = "nothing"
CAPACITIES = {
    AMPLE: Capacity(),
    "places": Capacity(target_places=0.5),
    "KV memory": Capacity(target_memory=1 / 3),
    "drafters": Capacity(drafter_places=0.25),
}
"""Capacities by what is scarce."""


@dataclass(frozen=True, slots=True)
class Models:
    """The pair, each model with its GPUs.

    Attributes:
        max_batch_tokens: Token rows of one forward; a chunk of a prefill has at most half as many.
    """

    target: Replica
    drafter: Replica
    max_batch_tokens: int = 1024

    @property
    def target_model(self) -> SimulatedConfig:
        """The simulated target."""
        return self.target.simulated(LANGUAGE)

    @property
    def drafter_model(self) -> SimulatedConfig:
        """The simulated drafter."""
        return self.drafter.simulated(replace(LANGUAGE, agreement=AGREEMENT))


@dataclass(frozen=True, slots=True)
class Deployment:
    """A number of replicas, and the load on them.

    Attributes:
        targets: Replicas of the target.
        drafters: Replicas of the drafter, for all targets together.
        routers: Routers, each connected to all replicas.
        streams: Concurrent requests, over all routers.
        scarce: What the replicas have too little of, a name in `CAPACITIES`.
    """

    targets: int
    drafters: int
    routers: int
    streams: int
    scarce: str = AMPLE

    def num_gpus(self, setting: str, models: Models) -> int:
        """Return the number of GPUs; plain decoding needs no drafters."""
        drafters = 0 if setting == PLAIN else self.drafters
        return self.targets * models.target.num_gpus + drafters * models.drafter.num_gpus


@dataclass(frozen=True, slots=True)
class Stage:
    """Deployments that are measured side by side, under one setting after the other.

    Attributes:
        dilation: Real seconds per simulated second.
    """

    deployments: tuple[Deployment, ...]
    settings: tuple[str, ...]
    dilation: float

    @property
    def num_targets(self) -> int:
        """Replicas that run at the same time."""
        return sum(each.targets for each in self.deployments)


@dataclass(frozen=True, slots=True)
class Dilations:
    """Dilations of the two stages."""

    smaller: float
    largest: float


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The deployments, and the amount of measuring.

    Attributes:
        shards: GPUs of a target replica.
        bandwidth_share: Share of a GPU's memory bandwidth that forwards of few rows reach.
        context_tokens: Mean context of a sequence.
        sizes: Targets of the deployments that are compared.
        streams: Concurrent requests per target.
        side_targets: Targets of the deployments with fewer streams or drafters.
        fewer_streams: Concurrent requests per target of further deployments.
        fewer_drafters: Drafters of further deployments.
        scarce: What further deployments have too little of.
        routers: Routers of the largest deployment; smaller ones have as many in proportion, at least one.
        prompt_tokens: Prompt tokens of every request; no cache has them.
        settle_s: Simulated seconds before anything counts.
        measure_s: Simulated seconds in which tokens count.
        dilation: Real seconds per simulated second; None measures what the CPU needs.
        repeat: Restarts of all processes for the router's CPU time.
        blocks: Blocks of requests of each setting after each restart, without the first.
        requests: Requests of one block.
        at_once: Concurrent requests of a block.
        profile_blocks: Blocks of each setting at another router, whose stacks are sampled.
    """

    shards: Annotated[int, Field(ge=2, le=8)] = 2
    bandwidth_share: Annotated[float, Field(gt=0, le=1)] = H200.bandwidth_share
    context_tokens: int = 2048
    sizes: Annotated[tuple[int, ...], Quick((1, 2))] = (1, 4, 16, 64)
    streams: Annotated[int, Field(ge=1), Quick(8)] = 31
    side_targets: int = 4
    fewer_streams: Annotated[tuple[int, ...], Quick(())] = (1, 8)
    fewer_drafters: Annotated[tuple[int, ...], Quick(())] = (1, 2)
    scarce: Annotated[tuple[str, ...], Quick(())] = ("places", "KV memory", "drafters")
    routers: Annotated[int, Field(ge=1), Quick(1)] = 8
    prompt_tokens: int = 128
    settle_s: Annotated[float, Quick(0.3)] = 0.8
    measure_s: Annotated[float, Quick(0.6)] = 1.0
    dilation: Annotated[Annotated[float, Field(ge=1)] | None, Quick(5.0)] = None
    repeat: Annotated[int, Quick(1)] = 3
    blocks: Annotated[int, Quick(2)] = 5
    requests: Annotated[int, Quick(8)] = 48
    at_once: Annotated[int, Quick(4)] = 8
    profile_blocks: Annotated[int, Quick(2)] = 5

    @property
    def request_tokens(self) -> float:
        """Mean length of a request with its response, in tokens."""
        return self.prompt_tokens + sum(LANGUAGE.response_tokens) / 2

    @property
    def models(self) -> Models:
        """Llama 70B on several H200s, with Llama 8B on one as its drafter."""
        gpu = replace(H200, bandwidth_share=self.bandwidth_share)
        drafter = Replica(LLAMA_8B, gpu, 1, self.context_tokens)
        return Models(Replica(LLAMA_70B, gpu, self.shards, self.context_tokens), drafter)

    def deployment(self, targets: int) -> Deployment:
        """Return a deployment with one drafter per target."""
        routers = max(1, round(self.routers * targets / max(self.sizes)))
        return Deployment(targets, targets, routers, self.streams * targets)

    def stages(self, dilations: Dilations) -> tuple[Stage, ...]:
        """Return the stages: all smaller deployments side by side, then the largest one by itself."""
        *smaller, largest = (self.deployment(targets) for targets in self.sizes)
        whole, targets = self.deployment(self.side_targets), self.side_targets
        loads = (replace(whole, streams=streams * targets) for streams in self.fewer_streams)
        lean = (replace(whole, drafters=drafters) for drafters in self.fewer_drafters)
        pressed = (replace(whole, scarce=scarce) for scarce in self.scarce)
        return (
            Stage((*smaller, *loads, *lean, *pressed), tuple(SETTINGS), dilations.smaller),
            Stage((largest,), ROUTER_SETTINGS, dilations.largest),
        )
