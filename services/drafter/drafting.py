"""Drafting: the speculation loop one level down; a proposer proposes, the drafter verifies exactly."""

from collections.abc import Sequence
from dataclasses import dataclass

from flyserve.core.errors import InvalidRequest
from flyserve.core.exclusions import num_allowed
from flyserve.core.messages import Open, ProposalCounts
from flyserve.core.sequence import common_length
from flyserve.core.types import SparseDistribution
from services.engine.base import Job
from services.engine.sequence import EngineSequence


class Proposer:
    """A source of proposals for the whole lifetime of one sequence; this base proposes nothing."""

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """Return a continuation of the sequence, at most `max_tokens` long, without waiting."""
        return ()

    def repeat(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """Return a continuation, at most `max_tokens` long, that is a draft without a forward of the model.

        The text repeats an earlier response, which is a better guess than the model's.
        """
        return ()

    def prefetch(self, sequence: EngineSequence) -> None:
        """Prepare proposals after the finished draft while the target verifies it."""

    def record_draft(self, num_tokens: int) -> ProposalCounts:
        """Record that a draft has ended; return the counts of requests since the previous draft."""
        return ProposalCounts()


class SubDrafterSession:
    """The session of a sequence at a sub-drafter; this base has none.

    Attributes:
        proposer: The source of its proposals.
    """

    def __init__(self) -> None:
        self.proposer = Proposer()

    def finish(self, ids: Sequence[int], decided: int) -> None:
        """Send the final sequence, of which `decided` tokens are decided. Called once, as the last call."""


@dataclass(frozen=True, slots=True)
class DraftResult:
    """A draft and its cost.

    Attributes:
        sub_drafter_tokens: Tokens that the sub-drafter supplied.
        distributions: The distribution of each token, if the target needs it (coupling `rejection`).
    """

    tokens: tuple[int, ...]
    forwards: int
    sub_drafter_tokens: int
    distributions: tuple[SparseDistribution, ...] = ()


class Drafting:
    """A draft in progress: at most `max_tokens` tokens, which are appended to the sequence.

    Each forward verifies the sub-drafter's proposal. It accepts the longest prefix that equals the model's
    own choices, or draws, and adds one token of the model. The draft is therefore the same for any proposal,
    and however often its job is ended and resumed. Only where the text repeats an earlier response, and the
    request `may_copy`, the draft is that response. A draft ends where the request leaves the model no token.

    Attributes:
        start: Length of the sequence without the draft.
        max_tokens: Longest draft.
        ending_ids: Tokens that end the draft; it includes them.
        forwards: Forwards of the model so far.
    """

    def __init__(
        self, sequence: EngineSequence, max_tokens: int, ending_ids: frozenset[int], proposer: Proposer
    ) -> None:
        self.start = len(sequence)
        self.max_tokens = max_tokens
        self.ending_ids = ending_ids
        self.forwards = 0
        self._sequence = sequence
        self._proposer = proposer
        self._sub_drafter_tokens = 0
        self._distributions: list[SparseDistribution] = []
        self._has_ended = False
        self._may_copy = may_copy(sequence.opening)

    @property
    def num_tokens(self) -> int:
        """Tokens drafted so far."""
        return len(self._sequence) - self.start

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be drafted."""
        return 0 if self._has_ended else self.max_tokens - self.num_tokens

    def job(self) -> Job[None]:
        """Draft to the end."""
        while self.num_remaining > 0:
            if repeat := self._repeat():
                self._append(repeat)
                continue
            proposal = self._proposer.propose(self._sequence, self.num_remaining - 1)
            try:
                yield from self._forward(proposal)
            except InvalidRequest:
                if self._sequence.opening.standalone and not self.num_tokens:
                    raise
                self._has_ended = True  # the target finds the fault if its response comes to this position

    def result(self) -> DraftResult:
        """Return the tokens drafted so far."""
        tokens = tuple(self._sequence.tokens.ids[self.start :])
        return DraftResult(
            tokens=tokens,
            forwards=self.forwards,
            sub_drafter_tokens=self._sub_drafter_tokens,
            distributions=tuple(self._distributions[: len(tokens)]),
        )

    def continued(self, max_tokens: int) -> "Drafting":
        """Return a draft of `max_tokens` after this one, on the same sequence."""
        return Drafting(self._sequence, max_tokens, self.ending_ids, self._proposer)

    def advance(self, start: int, max_tokens: int) -> None:
        """Move the start of the draft: the tokens before `start` are now part of the sequence."""
        del self._distributions[: start - self.start]
        self.start, self.max_tokens = start, max_tokens
        self._has_ended = self._has_ended and self.num_tokens > 0
        if self.num_tokens > max_tokens:
            self._sequence.truncate(start + max_tokens)

    def _repeat(self) -> tuple[int, ...]:
        """Return tokens that repeat an earlier response, up to one that the request excludes."""
        if not self._may_copy:
            return ()
        sequence, opening = self._sequence, self._sequence.opening
        tokens = self._proposer.repeat(sequence, self.num_remaining)
        return tokens[: num_allowed(opening.sampling, tokens, len(sequence) - opening.prompt_length)]

    def _forward(self, proposal: Sequence[int]) -> Job[None]:
        length = len(self._sequence)
        self._sequence.extend(proposal)
        try:
            scores = yield from self._sequence.score(len(proposal) + 1, is_proposing=True)
        except BaseException:  # also when the job is ended: a proposal is not part of the sequence
            self._sequence.truncate(length)
            raise
        self.forwards += 1
        matched = common_length(proposal, scores.choices)
        self._sequence.truncate(length + matched)
        self._sequence.extend(scores.choices[matched : matched + 1])
        self._distributions += scores.distributions[: matched + 1]
        self._sub_drafter_tokens += matched
        self._end_at_stop()

    def _append(self, tokens: Sequence[int]) -> None:
        """Append tokens to the draft without a forward."""
        self._sequence.extend(tokens)
        self._sub_drafter_tokens += len(tokens)
        self._end_at_stop()

    def _end_at_stop(self) -> None:
        drafted = self._sequence.tokens.ids[self.start :]
        ends = next((index + 1 for index, token in enumerate(drafted) if token in self.ending_ids), 0)
        if ends:
            self._sequence.truncate(self.start + ends)
            self._has_ended = True


def may_copy(opening: Open) -> bool:
    """Check that a draft may have tokens that the model has not chosen.

    A standalone sequence has only the model's own, and so has one whose drafts must be reproducible. A copy
    follows no temperature, no penalty and no grammar.
    """
    sampling = opening.sampling
    if opening.standalone or opening.without_copies:
        return False
    return not (opening.grammar or sampling.temperature or sampling.has_penalties)
