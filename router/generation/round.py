"""One round of a response with a target: propose, verify, decide."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from fly.draft_length.lookup_benefit import LookupBenefit
from fly.draft_length.policy import DraftLength
from fly.exclusions import num_allowed
from fly.messages import Draft, Verification
from fly.spans import StrictSpans
from fly.types import Decision, Evidence, Logprobs, Position, Token, Verdict
from router.generation.drafter_session import DrafterSession, cut_draft
from router.generation.extension import ExtensionLength
from router.generation.forced_drafts import ForcedDrafts
from router.generation.logprobs import PendingLogprobs
from router.generation.patience import Patience
from router.generation.predictions import Predictions
from router.generation.proposal import propose
from router.generation.response import Response, forward_seconds
from router.generation.target_session import TargetSession
from router.replicas.connections import Connections

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
        wants_draft: True if the present round was to have a draft.
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
    wants_draft: bool = False
    rounds_without_draft: int = 0
    late_rounds: int = 0
    waited_s: float = 0.0

    @property
    def is_free(self) -> bool:
        """True if the draft of the present round cost nothing, so that it says nothing about the drafter."""
        return self.predictions.is_pending or self.forced.is_pending

    @property
    def waits(self) -> bool:
        """True if every round waits for its draft, the first one included."""
        return self.request.plan.rule.reproducible_drafts

    @property
    def connections(self) -> Sequence[Connections[Any]]:
        drafter = (self.drafter.connections,) if self.drafter else ()
        return (self.target.connections, *drafter)

    async def decide_round(self) -> Decision:
        """Propose, verify, decide; without a draft the target decodes several tokens by itself."""
        self.lookup.begin_round()
        draft = without_excluded(self, await propose(self))
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
        if self.waits and (self.rounds_without_draft or self.looks_up):
            yield "speculation.reproducible_drafts: this response may differ from run to run"
        if self.late_rounds > max(_USUAL_LATE_ROUNDS, num_rounds / 2):
            yield f"{self.late_rounds} of {num_rounds} rounds did not wait for a late draft"


def without_excluded(response: SpeculativeResponse, draft: Draft) -> Draft:
    """Return the draft up to the first token that the request excludes, which no target would accept."""
    if not draft.tokens:
        return draft
    speculation, request = response.speculation, response.request
    num_before = len(speculation.sequence) - speculation.prompt_length
    length = num_allowed(request.sampling, draft.tokens, num_before)
    return cut_draft(draft, 0, response.forced.num_allowed(speculation.sequence, draft.tokens[:length]))


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
    is_drafting = response.wants_draft and response.drafter is not None and response.drafter.is_drafting
    most = min(
        response.lookup.tokens_until_request or math.inf,
        speculation.tokens_left,
        response.draft_length.most_steps,
    )
    num_tokens = 1 if is_drafting else response.extension.choose(int(most))
    start, decided_length = len(speculation.sequence), speculation.decided_length
    extension = await response.target.extend(speculation.sequence, decided_length, num_tokens)
    spent_s, num_tokens = response.clock.now() - requested_at, len(extension.choices)
    if not extension.times.prefill_tokens:
        forward_s = forward_seconds(extension.times)
        response.extension.record(num_tokens, forward_s or spent_s)
        response.lookup.record_extension(extension.choices, forward_s, spent_s)
    response.draft_length.record_verification(extension, spent_s, num_tokens)
    _count_verification(response, extension, spent_s)
    entropies = () if response.request.logprobs is None else extension.entropies
    decision = speculation.extend(extension.choices, entropies)
    _record_round(response, start, 0, decision)
    return decision


def _count_verification(response: SpeculativeResponse, verification: Verification, spent_s: float) -> None:
    statistics, forward_s = response.speculation.statistics, forward_seconds(verification.times)
    if response.request.logprobs is not None:
        response.logprobs.record(len(response.speculation.sequence), verification)
    response.metrics.verify_seconds.observe(spent_s)
    # NOTE: a prompt that was scored has been computed for this request, although the cache holds it now.
    if not statistics.rounds and response.request.prompt_logprobs is None:
        statistics.cached_tokens = verification.times.reused_tokens
    statistics.verify_s += forward_s
    statistics.wire_s += max(0.0, spent_s - forward_s)


def decide(response: SpeculativeResponse, draft: Draft, verification: Verification) -> Decision:
    """Apply the rule to the target's scores, which end before a draft that leaves no token to choose."""
    speculation, start = response.speculation, len(response.speculation.sequence)
    sequence, decided_length = speculation.sequence, speculation.decided_length
    scored = draft.tokens[: len(verification.choices) - 1]
    strict = response.strict_spans.strict(sequence.ids, decided_length, scored, verification.choices)
    decision = speculation.apply(make_evidence(scored, verification, strict))
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
    gaps = verification.gaps or repeat(math.nan)
    judged = zip(drafts, verification.choices, verification.entropies, flags, gaps, strict=False)
    positions = [
        Position(token, choice, entropy, index in excluded, is_strict=is_strict, logprob_gap=gap)
        for index, (token, choice, entropy, is_strict, gap) in enumerate(judged)
    ]
    return Evidence(tuple(positions), verification.choices[-1], verification.entropies[-1])
