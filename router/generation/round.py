"""One round of a response with a target: propose, verify, decide."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from flyserve.core.messages import Draft, Verification
from flyserve.core.round_record import RoundRecord
from flyserve.core.spans import StrictSpans
from flyserve.core.types import Decision, Evidence, Logprobs, Position, Token, Verdict
from router.generation.drafts.sources import NO_PROPOSAL, DraftSources
from router.generation.extension import ExtensionLength
from router.generation.logprobs import PendingLogprobs
from router.generation.response import Response
from router.generation.target_session import TargetSession
from router.replicas.connections import Connections

_OWN_CHOICES = frozenset({Verdict.CORRECTED, Verdict.BONUS, Verdict.PLAIN})


@dataclass(slots=True, kw_only=True)
class SpeculativeResponse(Response):
    """A response of a target, with or without drafts.

    Attributes:
        drafts: None if the response is decoded without drafts.
        extension: Number of tokens that the target decodes in a round without a draft.
        strict_spans: Parts of the response that are decoded exactly.
    """

    logprobs: PendingLogprobs
    target: TargetSession
    drafts: DraftSources | None
    extension: ExtensionLength
    strict_spans: StrictSpans

    @property
    def session(self) -> TargetSession:
        return self.target

    @property
    def connections(self) -> Sequence[Connections[Any]]:
        drafter = (self.drafts.drafter.session.connections,) if self.drafts else ()
        return (self.target.connections, *drafter)

    async def decide_round(self) -> RoundRecord:
        """Propose, verify, decide; without a draft the target decodes several tokens by itself."""
        speculation, started_s, proposal = self.speculation, self.clock.now(), NO_PROPOSAL
        if self.drafts:
            proposal = await self.drafts.propose(speculation, self.target.replica)
        start, requested_s, draft = len(speculation.sequence), self.clock.now(), proposal.draft
        is_extension = not draft.tokens and speculation.is_settled
        answer = await (self._extend() if is_extension else self._verify(draft))
        self.fit_context()
        answered_s = self.clock.now()
        if self.request.logprobs is not None:
            self.logprobs.record(start, answer)
        decision = self._take(answer) if is_extension else self._decide(draft, answer)
        growth = len(speculation.sequence) - start
        return RoundRecord(
            is_last=speculation.finish_reason is not None,
            decision=decision,
            started_s=started_s,
            answered_s=answered_s,
            answer_s=answered_s - requested_s,
            times=answer.times,
            num_decoded=len(answer.choices) if is_extension else 0,
            origin=proposal.origin,
            drafts=draft.tokens,
            num_accepted=count_accepted(len(draft.tokens), growth, decision),
            answer=answer,
            arrived=proposal.arrived,
            late_s=proposal.late_s,
            is_missed=proposal.is_missed,
        )

    async def _verify(self, draft: Draft) -> Verification:
        """Return the target's scores of the draft."""
        speculation = self.speculation
        distributions = draft.distributions if self.request.needs_distributions else ()
        return await self.target.verify(
            speculation.sequence, draft.tokens, speculation.decided_length, distributions
        )

    async def _extend(self) -> Verification:
        """Let the target decode some tokens by itself."""
        speculation, drafts = self.speculation, self.drafts
        if drafts and drafts.is_late:
            num_tokens = 1  # every further token would make the draft fit less
        else:
            most = min(speculation.tokens_left, drafts.most_steps if drafts else math.inf)
            num_tokens = self.extension.choose(int(most))
        return await self.target.extend(speculation.sequence, speculation.decided_length, num_tokens)

    def _take(self, extension: Verification) -> Decision:
        """Decide the tokens that the target has decoded by itself."""
        entropies = () if self.request.logprobs is None else extension.entropies
        return self.speculation.extend(extension.choices, entropies)

    def _decide(self, draft: Draft, verification: Verification) -> Decision:
        """Apply the rule to the target's scores, which end before a draft that leaves no token to choose."""
        speculation = self.speculation
        scored = draft.tokens[: len(verification.choices) - 1]
        strict = self.strict_spans.strict(
            speculation.sequence.ids, speculation.decided_length, scored, verification.choices
        )
        return speculation.apply(make_evidence(scored, verification, strict))

    def take_logprobs(self, position: int, decided: Token) -> Logprobs | None:
        return self.logprobs.take(position, decided)

    def warnings(self) -> Iterator[str]:
        yield from Response.warnings(self)
        if self.drafts:
            yield from self.drafts.drafter.warnings(self.speculation.statistics)


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
