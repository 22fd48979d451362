"""Requests of one sequence to the sub-drafter, and the latest response, as a drafting job uses them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from fly.lookup.budget import IndexShare
from fly.messages import Draft, ProposalCounts
from fly.sequence import TokenSequence
from services.drafter.cost_model import SpeculationBenefit
from services.drafter.drafting import Proposer
from services.drafter.level_choice import SequenceRounds
from services.drafter.local_proposer import LocalProposer
from services.engine.sequence import EngineSequence

_MAX_PROPOSAL_TOKENS = 15
"""Longest proposal that one forward verifies: with the pending token 16 rows."""

SNIPPET_TOKENS = 128
"""Tokens of snippets that each request asks for."""

_MIN_CONFIDENCE = 0.1
"""Confidence below which a proposal is ignored: every row of a forward costs time."""

_FIRST_LOOK, _LOOK_EVERY = 1, 16
"""Rounds without that level before and between looks for a response that repeats an earlier one."""


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """A request for a continuation: the sequence from `base` on, and the hash of the whole sequence.

    Attributes:
        base: Tokens at the start that have not changed since the previous request.
        tail: Token ids from there on.
        decided: Tokens that will never be rolled back.
        max_tokens: Longest proposal; 0 requests snippets only.
        prefix_hash: Hash of the whole sequence.
        sent_at: Seconds on the monotonic clock.
    """

    base: int
    tail: tuple[int, ...]
    decided: int
    max_tokens: int
    prefix_hash: int
    sent_at: float

    @property
    def length(self) -> int:
        """Length of the whole sequence, in tokens."""
        return self.base + len(self.tail)

    def precedes(self, sequence: TokenSequence) -> bool:
        """Return True if `sequence` starts with the sequence of this request."""
        return self.length <= len(sequence) and sequence.prefix_hash(self.length) == self.prefix_hash


class RemoteProposer(Proposer):
    """A proposer over requests that another task sends.

    A look-up sub-drafter also responds with snippets. The drafter makes local proposals from them, which take
    no time on the wire, and sends one request per draft, while the target verifies it. A model as sub-drafter
    is different: it gets a request whenever its latest response no longer continues the sequence, and the
    drafter waits for the response if that is profitable.

    Methods with a sequence belong to the thread that holds it, which is the engine's thread during a job and
    the event loop otherwise; all other methods belong to the event loop. NOTE: the threads share only single
    assignments, which are atomic.
    """

    def __init__(
        self,
        send: Callable[[ProposalRequest], None],
        benefit: SpeculationBenefit,
        vocab_size: int,
        share: IndexShare,
    ) -> None:
        """Create a proposer; `send` is called from any thread, and valid ids lie below `vocab_size`."""
        self._send = send
        self._benefit = benefit
        self._vocab_size = vocab_size
        self._local = LocalProposer(benefit, share)
        self._rounds = SequenceRounds(benefit.level)
        self._is_model = benefit.is_model
        self._request: ProposalRequest | None = None
        self._late_request: ProposalRequest | None = None
        self._response: tuple[ProposalRequest, tuple[int, ...]] | None = None
        self._settled = asyncio.Event()
        self._base = 0
        self._is_suspended = False
        self._should_wait = False
        self._looks_for_repeats = benefit.begin_sequence()
        self._num_unused, self._next_look = 0, _FIRST_LOOK
        self._num_requests = self._num_prefetches = 0
        self._num_late = self._num_invalid = self._num_low_confidence = 0

    @property
    def should_wait(self) -> bool:
        return self._should_wait

    @property
    def is_remembered(self) -> bool:
        """True if the sub-drafter proposes from finished sequences."""
        return not self._is_model

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        self._should_wait = False
        if max_tokens < 1:
            return ()
        if not self._benefit.level.is_used:
            self._look_for_repeat(sequence)
            return ()
        max_tokens = min(max_tokens, _MAX_PROPOSAL_TOKENS)
        if self._is_model:
            return self._propose_from_model(sequence, max_tokens)
        if self._request is None:
            self._send_prefetch(sequence, max_tokens)
        return self._local.propose(sequence, max_tokens)

    def repeat(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        return () if self._is_model else self._local.repeat(sequence, max_tokens)

    def prefetch(self, sequence: EngineSequence, max_tokens: int) -> None:
        self._local.record_matches(sequence)
        if not self._should_prefetch(sequence):
            return
        if self._request is None or self._settled.is_set():
            self._send_prefetch(sequence, max_tokens if self._is_model else 0)

    async def wait(self) -> None:
        started, timed_out = time.perf_counter(), False
        try:
            async with asyncio.timeout(self._benefit.timeout_s):
                await self._settled.wait()
        except TimeoutError:
            timed_out = True
            self._num_late += 1
        self._benefit.record_wait(time.perf_counter() - started, timed_out)

    def record_draft(
        self, num_tokens: int, forwards: int, seconds: float, sub_drafter_tokens: int
    ) -> ProposalCounts:
        self._rounds.record_draft(num_tokens, time.perf_counter())
        self._num_unused += not self._benefit.level.is_used
        self._benefit.record_forwards(forwards, seconds)
        self._benefit.record_requests(self._num_requests, sub_drafter_tokens)
        if self._request is not self._late_request and not self._settled.is_set():
            self._late_request = self._request
            self._num_late += 1
        counts = ProposalCounts(
            requested=self._num_requests + self._num_prefetches,
            late=self._num_late,
            invalid=self._num_invalid,
            low_confidence=self._num_low_confidence,
        )
        self._num_requests = self._num_prefetches = 0
        self._num_late = self._num_invalid = self._num_low_confidence = 0
        return counts

    def receive(self, request: ProposalRequest, draft: Draft) -> None:
        """Take over the sub-drafter's response to a request."""
        tokens = self._valid_prefix(draft.tokens[: request.max_tokens])
        if tokens != draft.tokens:
            self._num_invalid += 1
        if tokens and draft.confidence < _MIN_CONFIDENCE:
            self._num_low_confidence += 1
            tokens = ()
        if tokens:
            self._is_model = self._benefit.is_model = draft.match_length == 0
        self._add_snippets(draft.snippets)
        self._benefit.record_snippets(len(draft.snippets))
        self._response = request, tokens
        self._benefit.record_response(time.perf_counter() - request.sent_at)
        if request is self._request:
            self._settled.set()

    def suspend(self) -> None:
        """Send no requests until `resume`: the sub-drafter is unavailable."""
        self._is_suspended = True
        if self._request is not None and not self._settled.is_set():
            self._num_late += 1
        self._request = None
        self._settled.set()

    def resume(self) -> None:
        """Allow requests again."""
        self._is_suspended = False

    def _propose_from_model(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """Return the rest of the latest response; if there is none, send a request if it is profitable."""
        if proposal := self._rest_of_response(sequence):
            return proposal[:max_tokens]
        if not self._is_suspended and not self._is_pending(sequence) and self._benefit.should_request():
            self._num_requests += 1
            self._send_request(sequence, max_tokens)
            self._should_wait = self._benefit.should_wait()
        return ()

    def _should_prefetch(self, sequence: EngineSequence) -> bool:
        benefit = self._benefit
        if self._is_model:
            return benefit.level.is_used and benefit.is_profitable
        if not benefit.level.is_used:
            return self._local.is_repeating
        if not benefit.should_propose():
            return False
        self._local.follow(sequence)
        return benefit.should_fetch()

    def _look_for_repeat(self, sequence: EngineSequence) -> None:
        """Send a request now and then in rounds without that level, before a draft that may be wrong."""
        if self._is_model or not self._looks_for_repeats or self._num_unused < self._next_look:
            return
        self._next_look = _LOOK_EVERY * (1 + self._num_unused // _LOOK_EVERY)
        self._send_prefetch(sequence, 0)

    def _add_snippets(self, snippets: tuple[tuple[int, ...], ...]) -> None:
        """Add the snippets that contain only valid ids."""
        valid = [snippet for snippet in snippets if self._valid_prefix(snippet) == snippet]
        self._num_invalid += len(snippets) - len(valid)
        self._local.add_snippets(valid)

    def _valid_prefix(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens before the first id outside the vocabulary."""
        invalid = (index for index, token in enumerate(tokens) if token >= self._vocab_size)
        return tokens[: next(invalid, len(tokens))]

    def _is_pending(self, sequence: EngineSequence) -> bool:
        """Return True if the latest request concerns this sequence and has no response yet."""
        request = self._request
        return request is not None and not self._settled.is_set() and request.precedes(sequence.tokens)

    def _rest_of_response(self, sequence: EngineSequence) -> tuple[int, ...]:
        """Return the tokens of the latest response that still continue the sequence."""
        if self._response is None:
            return ()
        request, tokens = self._response
        if not request.precedes(sequence.tokens):
            return ()
        used = sequence.tokens.ids[request.length :]
        return tokens[len(used) :] if tuple(used) == tokens[: len(used)] else ()

    def _send_prefetch(self, sequence: EngineSequence, max_tokens: int) -> None:
        """Send a request whose response this round does not wait for, unless requests are suspended."""
        if not self._is_suspended:
            self._num_prefetches += 1
            self._send_request(sequence, max_tokens)

    def _send_request(self, sequence: EngineSequence, max_tokens: int) -> None:
        tokens, base = sequence.tokens, self._base
        request = ProposalRequest(
            base=base,
            tail=tuple(tokens.ids[base:]),
            decided=sequence.decided,
            max_tokens=max_tokens,
            prefix_hash=tokens.prefix_hash(len(tokens)),
            sent_at=time.perf_counter(),
        )
        self._base = sequence.decided
        self._settled.clear()
        self._request = request
        self._send(request)
