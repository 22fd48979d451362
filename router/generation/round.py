"""One round of a response with a target: propose, verify, decide."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

from fly.draft_length.lookup_benefit import LookupBenefit
from fly.draft_length.policy import DraftLength
from fly.messages import Draft, Verification
from fly.spans import StrictSpans
from fly.types import Decision, Evidence, Logprobs, Position, PositionLogprobs, RankedToken, Token, Verdict
from router.generation.drafter_session import ArrivedDraft, DrafterSession, DraftRequest
from router.generation.extension import ExtensionLength
from router.generation.forced_drafts import ForcedDrafts
from router.generation.patience import Patience
from router.generation.predictions import NO_DRAFT, Predictions
from router.generation.response import Response, forward_seconds
from router.generation.target_session import TargetSession
from router.replicas.connections import Connections
from router.text.tokenizer import Tokenizer


class PendingLogprobs:
    """Log-probabilities by position; a later verification of a position overwrites an earlier one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_position: dict[int, PositionLogprobs] = {}

    def record(self, first: int, verification: Verification) -> None:
        """Record the log-probabilities of the positions from `first` on, if they were requested."""
        self._by_position.update(enumerate(verification.logprobs, start=first))

    def take(self, position: int, decided: Token) -> Logprobs | None:
        """Remove and return those of the token decided at a position; None if they were not requested."""
        found = self._by_position.pop(position, None)
        if found is None:
            return None
        is_choice = decided.id == decided.choice or found.draft is None
        own = found.choice if is_choice else found.draft
        assert own is not None
        texts = self._tokenizer.pieces([token for token, _ in found.top])
        top = (RankedToken(token, text, value) for (token, value), text in zip(found.top, texts, strict=True))
        return Logprobs(own, found.choice, tuple(top))


_OWN_CHOICES = frozenset({Verdict.CORRECTED, Verdict.BONUS, Verdict.PLAIN})


_USUAL_LATE_ROUNDS = 8
"""Late rounds of a response that need no warning, as while the drafter computes its prompt."""


@dataclass(slots=True, kw_only=True)
class SpeculativeResponse(Response):
    """A response of a target, with or without drafts.

    Attributes:
        drafter: None if the response is decoded without drafts.
        looks_up: True if it looks tokens up and computes no model.
        draft_length: Chooses the draft length of each round.
        patience: Time that each round waits for its draft.
        extension: Number of tokens that the target decodes in a round without a draft.
        lookup: Requests and uses drafts that a drafter looks up.
        predictions: Drafts from the prediction of the request.
        forced: Drafts from the grammar of the request.
        strict_spans: Parts of the response that are decoded exactly.
        rounds_without_draft: Rounds in which no drafter was available.
        late_rounds: Rounds whose draft was outstanding when the target had to continue.
        waited_s: Time that rounds waited for drafts and that is not in the statistics yet.
    """

    logprobs: PendingLogprobs
    target: TargetSession
    drafter: DrafterSession | None
    looks_up: bool
    draft_length: DraftLength
    patience: Patience
    extension: ExtensionLength
    lookup: LookupBenefit
    predictions: Predictions
    forced: ForcedDrafts
    strict_spans: StrictSpans
    rounds_without_draft: int = 0
    late_rounds: int = 0
    waited_s: float = 0.0

    @property
    def is_free(self) -> bool:
        """True if the draft of the present round cost nothing, so that it says nothing about the drafter."""
        return self.predictions.is_pending or self.forced.is_pending

    @property
    def connections(self) -> Sequence[Connections[Any]]:
        drafter = (self.drafter.connections,) if self.drafter else ()
        return (self.target.connections, *drafter)

    async def decide_round(self) -> Decision:
        """Propose, verify, decide; without a draft the target decodes several tokens by itself."""
        self.lookup.begin_round()
        draft = await propose(self)
        if not draft.tokens and self.speculation.is_settled:
            return await extend(self)
        return decide(self, draft, await verify(self, draft))

    def take_logprobs(self, position: int, decided: Token) -> Logprobs | None:
        return self.logprobs.take(position, decided)

    def warnings(self) -> Iterator[str]:
        """Yield the reasons why rounds had no draft; a few late drafts are usual."""
        drafter, num_rounds = self.drafter, self.speculation.statistics.rounds
        if drafter is None:
            return
        if self.rounds_without_draft:
            yield f"{self.rounds_without_draft} of {num_rounds} rounds had no draft: {drafter.fault}"
        if self.late_rounds > max(_USUAL_LATE_ROUNDS, num_rounds / 2):
            yield f"{self.late_rounds} of {num_rounds} rounds did not wait for a late draft"


async def propose(response: SpeculativeResponse) -> Draft:
    """Return a draft after the sequence; an empty one if none is wanted, available or in time.

    The prediction of the request comes before the drafter, because it costs nothing. So does text that the
    grammar forces, if it is at least half a draft, or no draft is available.
    The first token never waits for the drafter: in the first round both prefill, and the draft is used later.
    """
    drafter, speculation = response.drafter, response.speculation
    length, most = response.draft_length.choose(), speculation.max_drafts
    if drafter is None or min(length, most) <= 0:
        return NO_DRAFT
    most_free, is_first = min(length, most), not speculation.statistics.rounds
    predicted = response.predictions.propose(speculation.sequence, most_free)
    if not predicted.tokens:
        least = 1 if is_first else (most_free + 1) // 2
        predicted = response.forced.propose(speculation.sequence, least, most_free)
    if is_first and most > 1:
        _request(response, drafter, min(length + 1, most))
    if predicted.tokens or is_first:
        return predicted
    if response.lookup.tokens_until_request and not drafter.is_drafting:
        return response.forced.propose(speculation.sequence, 1, most_free)
    is_new = False
    while drafter.is_drafting or (not is_new and (is_new := _request(response, drafter, min(length, most)))):
        if not await _arrives(response, drafter):
            return NO_DRAFT
        waited_s, draft = response.waited_s, _take(response, drafter, most)
        if draft is not None and (draft.tokens or is_new):
            return draft if _is_worthwhile(response, draft, waited_s) else NO_DRAFT
    forced = response.forced.propose(speculation.sequence, 1, most_free)
    if not forced.tokens:
        response.rounds_without_draft += 1
        response.metrics.rounds_missed.inc()
    return forced


def _request(response: SpeculativeResponse, drafter: DrafterSession, max_tokens: int) -> bool:
    speculation, end_at_stop = response.speculation, response.request.plan.end_at_stop
    return drafter.request(
        DraftRequest(
            response.target.replica,
            speculation.sequence,
            speculation.decided_length,
            max_tokens,
            end_at_stop,
        )
    )


async def _arrives(response: SpeculativeResponse, drafter: DrafterSession) -> bool:
    """Wait for the draft as long as it can pay for; return False if it is late."""
    started, verification_s = response.clock.now(), response.target.replica.pace.usual_s or 0.0
    is_exploring = response.draft_length.is_exploring
    limit_s = partial(response.patience.limit_s, verification_s, is_exploring=is_exploring)
    is_here = await drafter.arrives(limit_s)
    response.waited_s += response.clock.now() - started
    if not is_here:
        _count_wait(response, 0.0)
        response.late_rounds += 1
        response.metrics.rounds_late.inc()
    return is_here


def _take(response: SpeculativeResponse, drafter: DrafterSession, most: int) -> Draft | None:
    """Return what still fits of the draft that has arrived; None if it failed."""
    arrived = drafter.take(response.speculation.sequence, most)
    if arrived is None:
        return None
    _count_draft(response, arrived)
    if arrived.draft.tokens:
        response.patience.record_used(arrived.num_confirmed)
    elif arrived.whole.tokens:
        response.patience.record_dropped(arrived.num_confirmed)
        response.metrics.drafts_dropped.inc()
    return arrived.draft


def _is_worthwhile(response: SpeculativeResponse, draft: Draft, waited_s: float) -> bool:
    """Return False if a draft was looked up and is not worth its verification, as an empty one."""
    return not response.looks_up or response.lookup.accept(draft.tokens, waited_s)


async def verify(response: SpeculativeResponse, draft: Draft) -> Verification:
    """Return the target's scores of the draft."""
    speculation, requested_at = response.speculation, response.clock.now()
    distributions = draft.distributions if response.request.needs_distributions else ()
    verification = await response.target.verify(
        speculation.sequence, draft.tokens, speculation.decided_length, distributions
    )
    spent_s = response.clock.now() - requested_at
    if not response.is_free:
        response.draft_length.record_verification(verification, spent_s)
    if not verification.times.prefill_tokens:
        response.lookup.record_verification(len(draft.tokens), spent_s)
    _count_verification(response, verification, spent_s)
    return verification


async def extend(response: SpeculativeResponse) -> Decision:
    """Let the target decode some tokens by itself, and decide them."""
    speculation, requested_at = response.speculation, response.clock.now()
    # NOTE: one token at a time while a draft is late, since every further token makes it fit less.
    is_drafting = response.drafter is not None and response.drafter.is_drafting
    most = min(response.lookup.tokens_until_request or math.inf, speculation.max_drafts + 1)
    num_tokens = 1 if is_drafting else response.extension.choose(int(most))
    start, decided_length = len(speculation.sequence), speculation.decided_length
    if num_tokens == 1:
        extension = await response.target.verify(speculation.sequence, (), decided_length)
    else:
        extension = await response.target.extend(speculation.sequence, decided_length, num_tokens)
    spent_s, num_tokens = response.clock.now() - requested_at, len(extension.choices)
    if not extension.times.prefill_tokens:
        forward_s = forward_seconds(extension.times)
        response.extension.record(num_tokens, forward_s or spent_s)
        response.lookup.record_extension(extension.choices, forward_s, spent_s)
    response.draft_length.record_verification(_per_token(extension), spent_s / num_tokens)
    _count_verification(response, extension, spent_s)
    decision = speculation.extend(extension.choices, extension.entropies)
    _record_round(response, start, 0, decision)
    return decision


def _per_token(extension: Verification) -> Verification:
    """Return the mean step of an extension, as if each of its tokens had been a verification."""
    times, num_tokens = extension.times, len(extension.choices)
    if num_tokens == 1:
        return extension
    times = replace(times, queue_ns=times.queue_ns // num_tokens, forward_ns=times.forward_ns // num_tokens)
    return replace(extension, choices=extension.choices[:1], times=times)


def _count_verification(response: SpeculativeResponse, verification: Verification, spent_s: float) -> None:
    statistics, forward_s = response.speculation.statistics, forward_seconds(verification.times)
    response.logprobs.record(len(response.speculation.sequence), verification)
    response.metrics.verify_seconds.observe(spent_s)
    # NOTE: a prompt that was scored has been computed for this request, although the cache holds it now.
    if not statistics.rounds and response.request.prompt_logprobs is None:
        statistics.cached_tokens = verification.times.reused_tokens
    statistics.verify_s += forward_s
    statistics.wire_s += max(0.0, spent_s - forward_s)


def decide(response: SpeculativeResponse, draft: Draft, verification: Verification) -> Decision:
    """Apply the rule to the target's scores."""
    speculation, start = response.speculation, len(response.speculation.sequence)
    sequence, decided_length = speculation.sequence, speculation.decided_length
    strict = response.strict_spans.strict(sequence.ids, decided_length, draft.tokens, verification.choices)
    decision = speculation.apply(make_evidence(draft.tokens, verification, strict))
    _record_round(response, start, len(draft.tokens), decision)
    return decision


def _record_round(response: SpeculativeResponse, start: int, num_drafts: int, decision: Decision) -> None:
    """Record the decision of a round, before which the sequence had `start` tokens."""
    speculation, statistics = response.speculation, response.speculation.statistics
    num_accepted = count_accepted(num_drafts, len(speculation.sequence) - start, decision)
    response.metrics.record_round(num_drafts, num_accepted, decision)
    if response.predictions.is_pending:
        response.predictions.record(num_drafts, num_accepted, statistics)
    elif response.forced.is_pending:
        response.forced.record(num_drafts, num_accepted, statistics)
    else:
        _record_drafting(response, start, num_drafts, num_accepted, bool(decision.provisional))
    response.record_first_token(decision)


def _record_drafting(
    response: SpeculativeResponse, start: int, num_drafts: int, num_accepted: int, is_open: bool
) -> None:
    """Record a round for the next choices of a draft's length and of the wait for it."""
    if response.speculation.finish_reason is None:
        decided_length = response.speculation.decided_length
        response.draft_length.record_round(start, num_drafts, decided_length, is_open)
    if num_drafts:
        response.patience.record_round(num_accepted)
        response.lookup.record_round(num_drafts, num_accepted)


def count_accepted(num_drafts: int, growth: int, decision: Decision) -> int:
    """Return the number of a round's drafts that the sequence keeps, decided or provisional.

    `growth` is the change of the sequence's length; negative if an earlier round's window has failed.
    """
    ends_with_choice = bool(decision.decided) and not decision.provisional
    own = int(ends_with_choice and decision.decided[-1].verdict in _OWN_CHOICES)
    return min(num_drafts, max(0, growth - own))


def make_evidence(
    drafts: tuple[int, ...], verification: Verification, strict: Sequence[bool] = ()
) -> Evidence:
    """Return each draft with the target's scores at its position, and the target's extra choice.

    `strict` has True for each draft whose position is decided exactly; it is empty if there is none.
    """
    excluded = verification.excluded_drafts
    flags = strict or repeat(False)
    judged = zip(drafts, verification.choices, verification.entropies, flags, strict=False)
    positions = [
        Position(token, choice, entropy, index in excluded, is_strict=is_strict)
        for index, (token, choice, entropy, is_strict) in enumerate(judged)
    ]
    return Evidence(tuple(positions), verification.choices[-1], verification.entropies[-1])


def _count_draft(response: SpeculativeResponse, arrived: ArrivedDraft) -> None:
    draft, statistics = arrived.draft, response.speculation.statistics
    response.draft_length.record_draft(arrived.whole, arrived.spent_s)
    response.metrics.draft_seconds.observe(response.waited_s)
    _count_wait(response, forward_seconds(draft.times))
    statistics.count_draft(draft)


def _count_wait(response: SpeculativeResponse, forward_s: float) -> None:
    """Add the time that rounds waited for a draft to the statistics: first that of its forwards."""
    waited_s, response.waited_s = response.waited_s, 0.0
    drafted_s = min(forward_s, waited_s)
    response.speculation.statistics.draft_s += drafted_s
    response.speculation.statistics.wire_s += waited_s - drafted_s
