"""What is simulated: the models, the deployments, the ways of decoding, and for how long."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.simulate.hardware import H200, LLAMA_8B, LLAMA_70B, Replica
from fly.request import DraftLength, SpeculationParams
from fly.types import DraftLengthPolicy, Mode
from services.engine.simulation.language import SimulatedConfig

DRAFT_LENGTH = 15
PLAIN, FLY, GOODPUT = "plain", f"FLy, drafts of {DRAFT_LENGTH}", "FLy, goodput"
SETTINGS: Mapping[str, SpeculationParams] = {
    PLAIN: SpeculationParams(mode=Mode.PLAIN),
    FLY: SpeculationParams(mode=Mode.FLY, draft_length=DraftLength(max=DRAFT_LENGTH)),
    GOODPUT: SpeculationParams(
        mode=Mode.FLY, draft_length=DraftLength(policy=DraftLengthPolicy.GOODPUT, max=DRAFT_LENGTH)
    ),
}
"""By name, in the order of the tables."""

AGREEMENT = 0.925
"""Of drafter and target by position: so that tau is 10 with drafts of 15 under the default rule."""
END_ID = 0
"""Ends a response: of the demo's tokenizer, which the routers have."""
LANGUAGE = SimulatedConfig(response_tokens=(60, 180), vocab_size=1024, end_id=END_ID)


@dataclass(frozen=True, slots=True)
class Models:
    """The pair, each with its GPUs.

    Attributes:
        max_batch_tokens: Token rows of one forward; a prefill goes in chunks of half as many.
    """

    target: Replica
    drafter: Replica
    max_batch_tokens: int = 1024

    @classmethod
    def on_h200(cls, shards: int, context_tokens: int) -> "Models":
        """Llama 70B on so many GPUs, drafted for by 8B on one."""
        target = Replica(LLAMA_70B, H200, shards, context_tokens)
        return cls(target, Replica(LLAMA_8B, H200, 1, context_tokens))

    @property
    def target_model(self) -> SimulatedConfig:
        return self.target.simulated(LANGUAGE)

    @property
    def drafter_model(self) -> SimulatedConfig:
        return self.drafter.simulated(replace(LANGUAGE, agreement=AGREEMENT))


@dataclass(frozen=True, slots=True)
class Deployment:
    """So many replicas, and the load on them.

    Attributes:
        targets: Replicas of the target.
        drafters: Replicas of the drafter, for all targets together.
        routers: Before them, each with connections to all.
        streams: Requests at once, over all.
    """

    targets: int
    drafters: int
    routers: int
    streams: int

    def num_gpus(self, setting: str, models: Models) -> int:
        """GPUs that it takes; plain decoding needs no drafters."""
        drafters = 0 if setting == PLAIN else self.drafters
        return self.targets * models.target.num_gpus + drafters * models.drafter.num_gpus


@dataclass(frozen=True, slots=True)
class Stage:
    """Deployments that are measured side by side, under one setting after the other.

    Attributes:
        dilation: Real seconds for each simulated one.
    """

    deployments: tuple[Deployment, ...]
    settings: tuple[str, ...]
    dilation: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What is simulated.

    Attributes:
        sizes: Targets of the deployments that are compared; a replica of the largest is one of the smallest.
        streams: Requests at once for every target.
        fewer_streams: For `side_targets` targets, what else is measured.
        fewer_drafters: The same.
        routers: Of the largest deployment; smaller ones have as many by their size, one at least.
        prompt_tokens: Of every request, which no cache knows.
        settle_s: Simulated seconds before anything is counted.
        measure_s: Simulated seconds while tokens are counted.
        dilation: Real seconds for each simulated one; None measures what the CPU needs.
    """

    models: Models
    sizes: tuple[int, ...] = (1, 4, 16, 64)
    streams: int = 31
    side_targets: int = 4
    fewer_streams: tuple[int, ...] = (1, 8)
    fewer_drafters: tuple[int, ...] = (1, 2)
    routers: int = 8
    prompt_tokens: int = 128
    settle_s: float = 0.8
    measure_s: float = 1.0
    dilation: float | None = None

    def quick(self) -> "Plan":
        """As much as shows that everything works."""
        small = replace(self, sizes=(1, 2), streams=8, fewer_streams=(), fewer_drafters=(), routers=1)
        return replace(small, settle_s=0.3, measure_s=0.6, dilation=self.dilation or 5.0)

    def deployment(self, targets: int) -> Deployment:
        """With a drafter for each target."""
        routers = max(1, round(self.routers * targets / max(self.sizes)))
        return Deployment(targets, targets, routers, self.streams * targets)

    @property
    def side_deployments(self) -> tuple[Deployment, ...]:
        """Of other loads and with fewer drafters."""
        if not self.fewer_streams and not self.fewer_drafters:
            return ()
        whole, targets = self.deployment(self.side_targets), self.side_targets
        loads = (replace(whole, streams=streams * targets) for streams in self.fewer_streams)
        lean = (replace(whole, drafters=drafters) for drafters in self.fewer_drafters)
        return (*loads, *lean)

    def stages(self, dilations: "Dilations") -> tuple[Stage, ...]:
        """The largest deployment by itself, all others side by side."""
        *smaller, largest = (self.deployment(targets) for targets in self.sizes)
        return (
            Stage((*smaller, *self.side_deployments), tuple(SETTINGS), dilations.smaller),
            Stage((largest,), (PLAIN, FLY), dilations.largest),
        )


@dataclass(frozen=True, slots=True)
class Dilations:
    """Of the two stages."""

    smaller: float
    largest: float
