"""The draft of one round: requested, awaited as long as it pays, taken, and counted."""

import sys
from functools import partial
from typing import TYPE_CHECKING

from fly.messages import Draft
from router.generation.drafter_session import ArrivedDraft, DrafterSession, DraftRequest
from router.generation.predictions import NO_DRAFT
from router.generation.response import forward_seconds

if TYPE_CHECKING:
    from router.generation.round import SpeculativeResponse

_MOST_REQUESTS = 3
"""Requests for the draft of a round that must have one: if a drafter fails, another one is asked."""


async def propose(response: "SpeculativeResponse") -> Draft:
    """Return a draft after the sequence; an empty one if none is wanted, available or in time.

    The prediction of the request comes before the drafter, because it costs nothing. So does text that the
    grammar forces, if it is at least half a draft, or no draft is available.
    The first token does not wait for the drafter, unless drafts are reproducible: in the first round both
    models prefill, and the draft is used later.
    """
    drafter, speculation = response.drafter, response.speculation
    length, most = response.draft_length.choose(), _most_drafts(response)
    response.wants_draft = drafter is not None and min(length, most) > 0
    if drafter is None or not response.wants_draft:
        return NO_DRAFT
    most_free, is_first = min(length, most), not (speculation.statistics.rounds or response.waits)
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
    if (draft := await _draft(response, drafter, min(length, most), most)) is not None:
        return draft
    forced = response.forced.propose(speculation.sequence, 1, most_free)
    if not forced.tokens:
        response.rounds_without_draft += 1
        response.metrics.rounds_missed.inc()
    return forced


async def _draft(
    response: "SpeculativeResponse", drafter: DrafterSession, max_tokens: int, most: int
) -> Draft | None:
    """Return the drafter's draft; an empty one if it is late or not worthwhile; None if there is none."""
    requests_left = _MOST_REQUESTS if response.waits else 1
    while drafter.is_drafting or requests_left:
        if is_new := not drafter.is_drafting:
            requests_left -= 1
            if not _request(response, drafter, max_tokens):
                break
        if not await _arrives(response, drafter):
            return NO_DRAFT
        waited_s, draft = response.waited_s, _take(response, drafter, most)
        if draft is not None and (draft.tokens or is_new):
            return draft if _is_worthwhile(response, draft, waited_s) else NO_DRAFT
    return None


def _most_drafts(response: "SpeculativeResponse") -> int:
    """Return the longest draft that the budget and the target's context allow."""
    context_length = response.target.replica.info.context_length
    room = context_length - len(response.speculation.sequence) if context_length else sys.maxsize
    return min(response.speculation.max_drafts, room)


def _request(response: "SpeculativeResponse", drafter: DrafterSession, max_tokens: int) -> bool:
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


async def _arrives(response: "SpeculativeResponse", drafter: DrafterSession) -> bool:
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


def _take(response: "SpeculativeResponse", drafter: DrafterSession, most: int) -> Draft | None:
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


def _is_worthwhile(response: "SpeculativeResponse", draft: Draft, waited_s: float) -> bool:
    """Return False if a draft was looked up and is not worth its verification, as an empty one."""
    return not response.looks_up or response.lookup.accept(draft.tokens, waited_s)


def _count_draft(response: "SpeculativeResponse", arrived: ArrivedDraft) -> None:
    draft, statistics = arrived.draft, response.speculation.statistics
    response.draft_length.record_draft(arrived.whole, arrived.spent_s)
    response.metrics.draft_seconds.observe(response.waited_s)
    _count_wait(response, forward_seconds(draft.times))
    statistics.count_draft(draft)


def _count_wait(response: "SpeculativeResponse", forward_s: float) -> None:
    """Add the time that rounds waited for a draft to the statistics: first that of its forwards."""
    waited_s, response.waited_s = response.waited_s, 0.0
    drafted_s = min(forward_s, waited_s)
    response.speculation.statistics.draft_s += drafted_s
    response.speculation.statistics.wire_s += waited_s - drafted_s
