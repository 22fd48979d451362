"""The engine's interfaces: the input of a forward, its scores, KV memory, runner and scorer."""

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from flyserve.core.blocks import BlockKey
from flyserve.core.messages import ModelInfo
from flyserve.core.request import SamplingParams
from flyserve.core.types import EntropyEstimator, PositionLogprobs, SparseDistribution
from services.common.grammars.follower import Mask

if TYPE_CHECKING:
    from torch import Tensor

KvSlot = int
"""A sequence's number in KV memory; unlike vLLM's slots it stands for a whole sequence, not for one token."""
NO_SLOT: KvSlot = -1
"""Slot of a sequence that has been closed."""


class MaskFollower(Protocol):
    """Follows one response through a grammar."""

    def masks(
        self, tokens: Sequence[int], drafts: Sequence[int], ending_ids: Collection[int]
    ) -> Iterator[Mask]:
        """Yield the mask after a response, and after each of the drafts that the grammar allows.

        Raises:
            GrammarError: The response is not one of the grammar, or the grammar has exceeded a limit: with
                the draft after the last mask, if there is one.
        """


class TokenGrammar(Protocol):
    """A compiled grammar."""

    def follower(self) -> MaskFollower:
        """Return a follower at the start of a response."""


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """One sequence's part of a forward.

    Attributes:
        slot: The sequence's slot in KV memory.
        start: Position of the first of `tokens`; KV from there on is overwritten (rollback by length).
        tokens: Token ids to compute, at least one.
        num_outputs: Positions at the end of `tokens` that the head scores; 0 while prefilling.
        prompt_length: Positions from here on are response (penalties, min_tokens).
        history: Token ids of the whole sequence, including `tokens`, for penalties; must not be changed.
        drafts: The token that follows each output position, -1 for none; used to report excluded drafts.
        entropy: Estimator of the entropies to report; None reports zeros.
        num_logprobs: Number of most likely tokens to report log-probabilities of; None reports none.
        with_gaps: Report the gaps of the drafts.
        proposals: Distributions that the drafts were drawn from (coupling `rejection`); empty if unknown.
        is_proposing: The chosen tokens are drafts themselves: no entropy is reported; under `rejection` they
            are drawn from truncated distributions, which are reported.
        num_reused: Tokens before `start` whose KV was shared from another sequence since the last input.
        blocks: Keys of all blocks before the outputs, while some of them must be computed; empty afterwards.
        num_shared: Number of blocks of the sequence that others may reuse once they are computed.
        grammar: Constraint on the response, compiled; None is none.
    """

    slot: KvSlot
    start: int
    tokens: Sequence[int]
    num_outputs: int
    sampling: SamplingParams
    prompt_length: int
    history: Sequence[int]
    drafts: Sequence[int] = ()
    entropy: EntropyEstimator | None = EntropyEstimator.TOP_K
    num_logprobs: int | None = None
    with_gaps: bool = False
    proposals: Sequence[SparseDistribution] = ()
    is_proposing: bool = False
    num_reused: int = 0
    blocks: Sequence[BlockKey] = ()
    num_shared: int = 0
    grammar: "TokenGrammar | None" = None

    @property
    def first_position(self) -> int:
        """Position of the token that the first output chooses, which is the length of the prefix it sees."""
        return self.end - self.num_outputs + 1

    @property
    def end(self) -> int:
        """Length of the sequence including `tokens`."""
        return self.start + len(self.tokens)

    @property
    def num_prefill(self) -> int:
        """Number of tokens that are computed without an output."""
        return len(self.tokens) - self.num_outputs


@dataclass(frozen=True, slots=True)
class Scores:
    """The head's results for one sequence's output positions, in order.

    They end before a draft after which no token can be chosen, since the model may never choose that draft.
    They are an error only if the first position has no token to choose.

    Attributes:
        choices: Token that the model chooses after each position.
        entropies: Entropy of the model's distribution there, in the estimator's unit.
        excluded: True where the grammar or the sampling filters exclude the draft that follows.
        logprobs: Log-probabilities, if requested.
        gaps: Log-probability of the choice less that of the draft that follows, in nats, if requested; 0
            where none follows.
        distributions: Distribution that each token was drawn from, when proposing under `rejection`.
        late: The work that the scores wait for, if it is not done: the input must be computed again after it.
        error: Reason why the head has no results for this sequence, such as logits that are not finite.
        field: Field of the sequence's `Open` that the error is due to; "" if it is due to none.
        is_lost: True if the error is the end of a process that the sequence needs: another may serve it.
    """

    choices: tuple[int, ...]
    entropies: tuple[float, ...]
    excluded: tuple[bool, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()
    gaps: tuple[float, ...] = ()
    distributions: tuple[SparseDistribution, ...] = ()
    late: Future[Any] | None = None
    error: str = ""
    field: str = ""
    is_lost: bool = False

    @classmethod
    def joined(cls, parts: Iterable["Scores"]) -> "Scores":
        """Return the scores of consecutive positions as one; none of them may have an error."""
        whole = tuple(parts)
        return cls(
            choices=tuple(chain.from_iterable(part.choices for part in whole)),
            entropies=tuple(chain.from_iterable(part.entropies for part in whole)),
            excluded=tuple(chain.from_iterable(part.excluded for part in whole)),
            logprobs=tuple(chain.from_iterable(part.logprobs for part in whole)),
            gaps=tuple(chain.from_iterable(part.gaps for part in whole)),
            distributions=tuple(chain.from_iterable(part.distributions for part in whole)),
        )


class KvAllocator(Protocol):
    """KV memory by slot. A slot lives as long as its sequence; its memory may be freed meanwhile.

    The slot of a closed sequence may be retired: others can copy from it, and it does not count as open.
    """

    @property
    def shares_prefixes(self) -> bool:
        """True if `copy_prefix` takes no memory for whole blocks."""

    @property
    def max_sequences(self) -> int:
        """Largest number of open sequences."""

    @property
    def kv_capacity(self) -> int:
        """Token positions in total."""

    @property
    def kv_used(self) -> int:
        """Token positions reserved."""

    @property
    def kv_cached(self) -> int:
        """Reserved token positions that only slots of closed sequences hold."""

    def reserved(self, slot: KvSlot) -> int:
        """Return the token positions that the slot may use, shared ones included."""

    def whole(self, num_tokens: int) -> int:
        """Return the smallest reservation for a sequence of this many tokens that is not alone."""

    def allocate(self, num_tokens: int) -> KvSlot | None:
        """Return a new slot with room for `num_tokens`, or None if memory or `max_sequences` is exhausted."""

    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        """Make room for `num_tokens` in total and keep the stored KV; 0 frees all.

        Positions from `start` on are about to be written; None if none are.

        Returns:
            False if memory is full; nothing has changed then.
        """

    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        """Give `slot` the first `num_tokens` positions of `source`, and room for them if it has none.

        Returns:
            False if memory is full; nothing has changed then.
        """

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        """Mark the slot's sequence as closed; its first `num_tokens` can be copied until `free`."""

    def free(self, slot: KvSlot) -> None:
        """Free an open or retired slot; it must not be used afterwards."""


class Runner(KvAllocator, Protocol):
    """Computes logits of one model over its KV memory; only one thread may call it at a time.

    It knows nothing of sampling: of an input it reads `slot`, `start`, `tokens` and `num_outputs` alone.
    """

    info: ModelInfo

    def logits(self, batch: Sequence[ForwardInput]) -> "Tensor":
        """Compute all inputs of the batch in one forward.

        Every input has room in its slot, and its token ids and positions lie within the model's limits.

        Returns:
            Logits of all output rows in the order of the inputs, (outputs, embedding rows), in any floating
            type and on any device; the next call may overwrite them.

        Raises:
            RunnerLost: Every later forward would fail as well.
        """


@runtime_checkable
class ScoringRunner(Protocol):
    """A `Runner` that can score a batch in another process, in which its logits are."""

    def scores(self, batch: Sequence[ForwardInput]) -> "list[Scores] | None":
        """Compute and score a batch; None, without any effect, if only its logits can be had.

        Raises:
            RunnerLost: Every later forward would fail as well.
        """


class Scorer(KvAllocator, Protocol):
    """Scores forwards of one model for the core; only one thread may call it at a time."""

    info: ModelInfo

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        """Compute and score a batch, whose inputs are as those of `Runner.logits`.

        Returns:
            Scores per input, in the same order.

        Raises:
            RunnerLost: Every later forward would fail as well.
        """


class RunnerLost(RuntimeError):
    """The runner cannot compute any more and must be replaced."""


class Keepalive(Protocol):
    """Periodic calls that some runners need between forwards; made on the thread that calls `forward`."""

    @property
    def idle_interval_s(self) -> float:
        """Longest time between two calls of `on_idle`."""

    def on_idle(self) -> None:
        """Keep an idle runner alive.

        Raises:
            RunnerLost: The runner cannot compute any more.
        """

    def close(self) -> None:
        """Release the runner's resources; the last call; never raises."""


T = TypeVar("T")
Job = Generator[ForwardInput, Scores, T]
"""A computation on one sequence: it yields inputs of forwards, receives their scores, and returns its result.

The engine advances all jobs together, one forward per turn, so a verification (one turn) and a draft (many
turns) share forwards. A job never blocks. A sequence has one job at a time."""


class Replan(Exception):
    """Raised in a job instead of sending scores: the KV has changed, so it must yield a new input."""


class DelegatedMemoryStats:
    """Base class of a `KvAllocator` that reports the statistics of another one."""

    def __init__(self, source: KvAllocator) -> None:
        self._stats = source
        self.max_sequences, self.kv_capacity = source.max_sequences, source.kv_capacity
        self.shares_prefixes = source.shares_prefixes
        self.reserved, self.whole = source.reserved, source.whole

    @property
    def kv_used(self) -> int:
        return self._stats.kv_used

    @property
    def kv_cached(self) -> int:
        return self._stats.kv_cached
