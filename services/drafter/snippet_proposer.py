"""Requests of one sequence for snippets of the sub-drafter, and the proposals that use them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from flyserve.core.comparison import RoundTimer
from flyserve.core.messages import Draft, ProposalCounts
from services.drafter.drafting import Proposer
from services.drafter.proposals import Proposals
from services.drafter.sub_drafter_use import SubDrafterUse
from services.engine.sequence import EngineSequence
from services.lookup.index.budget import IndexShare

_MAX_PROPOSAL_TOKENS = 15
"""Longest proposal that one forward verifies: with the pending token 16 rows."""

SNIPPET_TOKENS = 128
"""Tokens of snippets that each request asks for."""

_FIRST_LOOK, _LOOK_EVERY = 1, 16
"""Rounds without proposals before and between looks for a response that repeats an earlier one."""


@dataclass(frozen=True, slots=True)
class SnippetRequest:
    """A request for snippets: the sequence from `base` on.

    Attributes:
        base: Tokens at the start that have not changed since the previous request.
        tail: Token ids from there on.
        decided: Tokens that will never be rolled back.
    """

    base: int
    tail: tuple[int, ...]
    decided: int


class SnippetProposer(Proposer):
    """Proposals from the sequence and from the snippets of a sub-drafter, which another task requests.

    Proposals take no time on the wire. The drafter sends at most one request per draft, while the
    target verifies it, and never waits for the response.

    Methods with a sequence belong to the thread that holds it, which is the engine's thread during a job and
    the event loop otherwise; all other methods belong to the event loop. NOTE: the threads share only single
    assignments, which are atomic.
    """

    def __init__(
        self,
        send: Callable[[SnippetRequest], None],
        use: SubDrafterUse,
        vocab_size: int,
        share: IndexShare,
    ) -> None:
        """Create a proposer; `send` is called from any thread, and valid ids lie below `vocab_size`."""
        self._send = send
        self._use = use
        self._vocab_size = vocab_size
        self._proposals = Proposals(use, share)
        self._rounds = RoundTimer(use.comparison)
        self._request: SnippetRequest | None = None
        self._late_request: SnippetRequest | None = None
        self._is_pending = False
        self._base = 0
        self._is_suspended = False
        self._looks_for_repeats = use.begin_sequence()
        self._num_unused, self._next_look = 0, _FIRST_LOOK
        self._num_requests = self._num_late = self._num_invalid = 0

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        if max_tokens < 1:
            return ()
        if not self._use.comparison.is_on:
            self._look_for_repeat(sequence)
            return ()
        if self._request is None:
            self._send_request(sequence)
        return self._proposals.propose(sequence, min(max_tokens, _MAX_PROPOSAL_TOKENS))

    def repeat(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        return self._proposals.repeat(sequence, max_tokens)

    def prefetch(self, sequence: EngineSequence) -> None:
        if self._should_prefetch(sequence) and not self._is_pending:
            self._send_request(sequence)

    def record_draft(self, num_tokens: int) -> ProposalCounts:
        self._rounds.record(num_tokens, time.perf_counter())
        self._num_unused += not self._use.comparison.is_on
        if self._request is not self._late_request and self._is_pending:
            self._late_request = self._request
            self._num_late += 1
        counts = ProposalCounts(self._num_requests, self._num_late, self._num_invalid)
        self._num_requests = self._num_late = self._num_invalid = 0
        return counts

    def receive(self, request: SnippetRequest, draft: Draft) -> None:
        """Take over the sub-drafter's response to a request: its snippets that contain only valid ids.

        Tokens of a draft were not asked for, so they count as invalid.
        """
        valid = [snippet for snippet in draft.snippets if all(token < self._vocab_size for token in snippet)]
        self._num_invalid += len(draft.snippets) - len(valid) + bool(draft.tokens)
        self._proposals.add_snippets(valid)
        self._use.record_snippets(len(draft.snippets))
        if request is self._request:
            self._is_pending = False

    def suspend(self) -> None:
        """Send no requests until `resume`: the sub-drafter is unavailable."""
        self._is_suspended = True
        self._num_late += self._is_pending
        self._request, self._is_pending = None, False

    def resume(self) -> None:
        """Allow requests again."""
        self._is_suspended = False

    def _should_prefetch(self, sequence: EngineSequence) -> bool:
        if not self._use.comparison.is_on:
            return self._proposals.is_repeating
        self._proposals.follow(sequence)
        return self._use.should_fetch()

    def _look_for_repeat(self, sequence: EngineSequence) -> None:
        """Send a request now and then in rounds without proposals, before a draft that may be wrong."""
        if self._looks_for_repeats and self._num_unused >= self._next_look:
            self._next_look = _LOOK_EVERY * (1 + self._num_unused // _LOOK_EVERY)
            self._send_request(sequence)

    def _send_request(self, sequence: EngineSequence) -> None:
        """Send a request unless they are suspended."""
        if self._is_suspended:
            return
        tokens, base = sequence.tokens, self._base
        request = SnippetRequest(base, tuple(tokens.ids[base:]), sequence.decided)
        self._base = sequence.decided
        self._num_requests += 1
        self._request, self._is_pending = request, True
        self._send(request)
