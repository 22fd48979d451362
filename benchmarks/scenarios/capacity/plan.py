"""The comparison: the placements of the drafters, the clients, what a window gives."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from benchmarks.harness.command import BasePlan, Quick
from benchmarks.scenarios.simulate.hardware import H200, LLAMA_8B, LLAMA_70B, Replica
from benchmarks.scenarios.simulate.plan import Models

CO_LOCATED = "co-located"
PAUSE_S = 1e-3
"""Time for which a co-located target waits for the drafts of further sequences."""


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
class Plan(BasePlan):
    """The deployments, and the amount of measuring.

    Attributes:
        groups: Groups of GPUs; each holds a target, a drafter, or, co-located, both.
        drafters: Groups of the tier that hold a drafter; the others hold targets.
        shards: GPUs of a group.
        context_tokens: Mean context of a sequence.
        draft_length: Tokens of a draft.
        ahead_sequences: Most open sequences with which a drafter of the tier drafts ahead.
        delays_ms: Delays of a message between router and tier, each way.
        prompt_tokens: Prompt tokens of every request; no cache has them.
        floors: Tokens per second that every client should have.
        levels: Numbers of clients, with the times of their windows.
        repeat: Windows of every number of clients.
    """

    groups: Annotated[int, Field(ge=2)] = 4
    drafters: Annotated[int, Field(ge=1)] = 1
    shards: Annotated[int, Field(ge=2, le=8)] = 2
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
    repeat: Annotated[int, Field(ge=1), Quick(2)] = 4

    @property
    def models(self) -> Models:
        """Llama 70B and Llama 8B, each on all GPUs of a group."""
        target, drafter = (
            Replica(model, H200, self.shards, self.context_tokens) for model in (LLAMA_70B, LLAMA_8B)
        )
        return Models(target, drafter)

    @property
    def placements(self) -> dict[str, float]:
        """Delay in seconds by placement; that of the co-located pairs comes first."""
        return {CO_LOCATED: 0.0, **{f"tier, {delay:g} ms": 1e-3 * delay for delay in self.delays_ms}}


@dataclass(frozen=True, slots=True)
class Measured:
    """One placement and one number of clients, in one window.

    Attributes:
        tokens_per_s: Tokens of all clients per simulated second.
        late: Time that forwards took beyond their cost, as a share of their cost.
        outside: Share of the clients' time in which no service had a step of them.
    """

    tokens_per_s: float
    tau: float
    late: float
    outside: float


Found = dict[int, list[dict[str, Measured]]]
"""Windows by number of clients, each with all placements side by side."""
