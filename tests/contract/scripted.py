"""Models that differ at chosen positions with chosen entropies; services that record their updates."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from flyserve.core.messages import Draft, DraftStep, Extend, Open, Verification, VerifyStep
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import ReplicatedSequence
from flyserve.core.types import Coupling, PositionLogprobs, SparseDistribution
from tests.contract.fakes import EOS, VOCAB_SIZE, FakeDrafter, FakeTarget, HashModel

PROMPT_LENGTH = 4


@dataclass(frozen=True)
class ScriptedModel(HashModel):
    """A `HashModel` that leaves its own path at chosen positions of the response.

    Attributes:
        deviates: Response positions at which it takes another token than a model that never deviates.
        certain: Response positions with entropy 0; all others have 1 nat.
    """

    deviates: frozenset[int] = frozenset()
    certain: frozenset[int] = frozenset()

    def choice(self, ids: Sequence[int], sampling: SamplingParams, prompt_length: int) -> int:
        word = super().choice(ids, sampling, prompt_length)
        return deviation(word) if len(ids) - prompt_length in self.deviates and word != EOS else word

    def entropy(self, ids: Sequence[int]) -> float:
        return 0.0 if len(ids) - PROMPT_LENGTH in self.certain else 1.0


def deviation(word: int) -> int:
    """Return the token in place of `word` at a deviation."""
    return 2 + (word - 1) % (VOCAB_SIZE - 2)


@dataclass(frozen=True)
class SeededModel(HashModel):
    """A `HashModel` whose tokens depend on the seed at a temperature above 0."""

    def choice(self, ids: Sequence[int], sampling: SamplingParams, prompt_length: int) -> int:
        word = super().choice(ids, sampling, prompt_length)
        is_greedy = sampling.temperature == 0 or word == EOS
        return word if is_greedy else 2 + (word + sampling.seed) % (VOCAB_SIZE - 2)


@dataclass
class UpdateLog:
    """The updates of one service: at each step the decided length and the whole sequence."""

    steps: list[tuple[int, list[int]]] = field(default_factory=list)

    def take(self, known: ReplicatedSequence) -> None:
        self.steps.append((known.decided, [*known.tokens.ids]))

    def is_true_to(self, sequence: list[int]) -> bool:
        """Return True if every decided prefix is a prefix of the final sequence."""
        return all(ids[:decided] == sequence[:decided] for decided, ids in self.steps)


class LoggingTarget(FakeTarget):
    def __init__(self, model: HashModel, **info: Any) -> None:
        super().__init__(model, **info)
        self.updates = UpdateLog()
        self.asked: list[VerifyStep | Extend] = []

    @property
    def verified(self) -> list[VerifyStep]:
        """Steps that scored drafts, or none."""
        return [step for step in self.asked if isinstance(step, VerifyStep)]

    def answer(self, known: ReplicatedSequence, opening: Open, step: VerifyStep | Extend) -> Verification:
        self.updates.take(known)
        self.asked.append(step)
        verification = super().answer(known, opening, step)
        if opening.num_logprobs is None:
            return verification
        num_drafts = 0 if isinstance(step, Extend) else step.num_drafts
        drafts = known.tokens.ids[len(known) - num_drafts :]
        return verification._replace(logprobs=tuple(logprobs_of(verification, drafts, opening.num_logprobs)))


def logprobs_of(verification: Verification, drafts: Sequence[int], count: int) -> Iterator[PositionLogprobs]:
    """Return artificial values that identify their token: -(id + 1) / 1000."""
    for draft, choice in zip_longest(drafts, verification.choices):
        top = tuple((token, logprob(token)) for token in range(choice, choice + count))
        yield PositionLogprobs(None if draft is None else logprob(draft), logprob(choice), top)


def logprob(token: int) -> float:
    return -(token + 1) / 1000


class LoggingDrafter(FakeDrafter):
    """A drafter that reports the distributions of its drafts if asked."""

    def __init__(self, model: HashModel, **info: Any) -> None:
        super().__init__(model, **info)
        self.updates = UpdateLog()

    def answer(self, known: ReplicatedSequence, opening: Open, step: DraftStep) -> Draft:
        self.updates.take(known)
        draft = super().answer(known, opening, step)
        if opening.sampling.coupling is not Coupling.REJECTION:
            return draft
        return draft._replace(distributions=tuple(map(drawn_from, draft.tokens)))


def drawn_from(token: int) -> SparseDistribution:
    return SparseDistribution((token, (token + 1) % VOCAB_SIZE), (0.75, 0.25))
