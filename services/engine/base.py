"""What the engine is made of: work for one forward, its scores, the runner that computes them."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fly.messages import ModelInfo
from fly.request import SamplingParams
from fly.types import EntropyEstimator, PositionLogprobs, SparseDistribution

Slot = int
"""A sequence's place in the runner's KV memory."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one sequence wants of the next forward.

    Attributes:
        slot: The sequence's place in KV memory.
        start: Position of the first of `tokens`; KV from there on is overwritten (rollback by length).
        tokens: Token ids to compute, at least one.
        num_outputs: Positions at the end of `tokens` that the head answers for, 0 while prefilling.
        sampling: How the head chooses.
        prompt_length: Positions from here on are response (penalties, min_tokens).
        history: Token ids of the whole sequence, `tokens` included, for penalties; not to be changed.
        drafts: The token that follows each output position, -1 where none does; to tell excluded drafts.
        entropy: The estimator.
        num_logprobs: Most likely tokens whose log-probabilities are told; None tells none.
        proposals: What the drafts were drawn from (coupling `rejection`); empty where nothing is known of it.
        is_proposing: The choices are drafts themselves: no entropy is told; under `rejection` they are drawn
            from distributions to tell.
        num_reused: Tokens before `start` whose KV was taken from another sequence, since the last work.
    """

    slot: Slot
    start: int
    tokens: Sequence[int]
    num_outputs: int
    sampling: SamplingParams
    prompt_length: int
    history: Sequence[int]
    drafts: Sequence[int] = ()
    entropy: EntropyEstimator = EntropyEstimator.TOP_K
    num_logprobs: int | None = None
    proposals: Sequence[SparseDistribution] = ()
    is_proposing: bool = False
    num_reused: int = 0

    @property
    def first_position(self) -> int:
        """Of the token that the first output chooses: the length of the prefix that it sees."""
        return self.end - self.num_outputs + 1

    @property
    def end(self) -> int:
        """Length of the sequence with `tokens`."""
        return self.start + len(self.tokens)

    @property
    def num_unanswered(self) -> int:
        """Tokens that are computed without an answer."""
        return len(self.tokens) - self.num_outputs


@dataclass(frozen=True, slots=True)
class Scores:
    """The head's answer for one sequence's output positions, in order.

    Attributes:
        choices: Token that the model takes after each position.
        entropies: Of its distribution there, in the estimator's unit.
        excluded: The sampling filters exclude the draft that follows there.
        logprobs: Where they were asked for.
        distributions: What each choice was drawn from, where it proposes under `rejection`.
    """

    choices: tuple[int, ...]
    entropies: tuple[float, ...]
    excluded: tuple[bool, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()
    distributions: tuple[SparseDistribution, ...] = ()


class Memory(Protocol):
    """KV memory by slot: a handle that lives as long as its sequence, while its room may be taken away.

    The slot of a closed sequence may stay for others to copy from, and takes no place then.
    """

    @property
    def max_sequences(self) -> int:
        """Places: open sequences at once."""

    @property
    def kv_capacity(self) -> int:
        """Token positions in all."""

    @property
    def kv_used(self) -> int:
        """Token positions reserved."""

    @property
    def kv_cached(self) -> int:
        """Those of them that only slots of closed sequences hold."""

    def allocate(self, num_tokens: int) -> Slot | None:
        """A slot with room for `num_tokens`; None while memory or places are full."""

    def resize(self, slot: Slot, num_tokens: int, start: int | None = None) -> bool:
        """Makes room for `num_tokens` in all, keeping what is there; 0 evicts.

        Args:
            slot: Whose room.
            num_tokens: Positions that it needs.
            start: Positions from here on are about to be written; None where none are.

        Returns:
            False where memory is full; nothing has changed then.
        """

    def copy_prefix(self, source: Slot, slot: Slot, num_tokens: int) -> bool:
        """Gives the slot the source's first `num_tokens` positions, and room for them if it has none.

        Returns:
            False where memory is full; nothing has changed then.
        """

    def retire(self, slot: Slot, num_tokens: int) -> None:
        """The slot's sequence is closed: of its first `num_tokens`, others may copy until it is freed."""

    def free(self, slot: Slot) -> None:
        """Gives the slot back."""


class Runner(Memory, Protocol):
    """Executes forwards of one model; called by one thread at a time."""

    info: ModelInfo

    def forward(self, batch: Sequence[Work]) -> list[Scores]:
        """Computes all work of the batch in one forward.

        Every work has room in its slot, and its token ids and positions lie within the model's limits.

        Returns:
            Scores per work, in the same order.

        Raises:
            RunnerLost: Every later forward would fail as well.
        """


class RunnerLost(RuntimeError):
    """The runner can compute no more; nothing but another one helps."""


class Upkeep(Protocol):
    """What some runners need besides forwards; called by the thread that calls `forward`."""

    @property
    def idle_interval_s(self) -> float:
        """How long it may be left alone."""

    def on_idle(self) -> None:
        """It has been left alone that long.

        Raises:
            RunnerLost: It turned out to be of no more use.
        """

    def close(self) -> None:
        """Its last call; never raises."""


T = TypeVar("T")
Job = Generator[Work, Scores, T]
"""A sequence's errand at the engine: yields work, is sent its scores, returns its result.

The engine advances all jobs together, one forward per turn, so a verification (one turn) and a draft (many
turns) share forwards. A job never blocks. A sequence has one job at a time."""
