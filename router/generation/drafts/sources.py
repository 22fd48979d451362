"""The draft of a round: the first that one of several sources has, asked in order."""

import sys
from collections.abc import Iterator
from typing import NamedTuple

from flyserve.core.break_even import allowed_length
from flyserve.core.exclusions import num_allowed
from flyserve.core.messages import Draft
from flyserve.core.round_record import ArrivedDraft, DraftOrigin, RoundRecord
from flyserve.core.speculation import Speculation
from router.generation.drafts.drafter import DrafterDrafts
from router.generation.drafts.drafter_session import cut_draft
from router.generation.drafts.free import ForcedDrafts, ForcedText, PredictedDrafts
from router.generation.drafts.source import NO_DRAFT, DraftSource, WantedDraft
from router.replicas.replica import Replica
from router.requests.request import PreparedRequest


class Proposal(NamedTuple):
    """The draft that a round verifies, and how it came to it; see `RoundRecord`."""

    draft: Draft = NO_DRAFT
    origin: DraftOrigin = DraftOrigin.NONE
    arrived: tuple[ArrivedDraft, ...] = ()
    late_s: float | None = None
    is_missed: bool = False


NO_PROPOSAL = Proposal()


class DraftSources:
    """The sources of one response's drafts.

    The prediction of the request comes before the drafter, because it costs nothing. So does text that the
    grammar forces, if it is at least half a draft. Where the drafter has none, shorter text will do.

    Attributes:
        drafter: The drafter's drafts.
    """

    def __init__(
        self, request: PreparedRequest, drafter: DrafterDrafts, max_sequences: int | None = None
    ) -> None:
        """Begin a response, without drafts while more than `max_sequences` are open at its target."""
        self.drafter = drafter
        self._length = request.plan.draft_length
        self._waits = request.plan.rule.reproducible_drafts
        self._max_sequences = None if self._waits else max_sequences
        self._sampling = request.sampling
        self._forced = ForcedText(request) if request.grammar else None
        self._predicted = PredictedDrafts(request) if request.prediction else None
        self._sources = tuple(self._in_order())
        self._is_wanted = False

    def _in_order(self) -> Iterator[DraftSource]:
        if self._predicted:
            yield self._predicted
        if self._forced:
            yield ForcedDrafts(self._forced, is_long=True)
        yield self.drafter
        if self._forced:
            yield ForcedDrafts(self._forced, is_long=False)

    @property
    def most_steps(self) -> float:
        """Most tokens that the target may decode by itself before the next draft is due."""
        return self.drafter.most_steps

    @property
    def is_late(self) -> bool:
        """True if the draft that the round wanted is still outstanding."""
        return self._is_wanted and self.drafter.is_drafting

    async def propose(self, speculation: Speculation, target: Replica) -> Proposal:
        """Return a draft for `target` to verify; an empty one if none is wanted, available or in time.

        The first token does not wait for the drafter, unless drafts are reproducible: in the first round both
        models prefill, and the draft is used later.
        """
        wanted, drafter = self._wanted(speculation, target), self.drafter
        self._is_wanted = wanted.length > 0
        if not self._is_wanted:
            return NO_PROPOSAL
        drafter.begin_round(wanted)
        draft, origin = await self._first(wanted)
        is_missed = drafter.is_missed and origin is DraftOrigin.NONE
        arrived = tuple(drafter.arrived)
        return Proposal(self._allowed(draft, speculation), origin, arrived, drafter.late_s, is_missed)

    async def _first(self, wanted: WantedDraft) -> tuple[Draft, DraftOrigin]:
        """Return the draft of the first source that has one, or that leaves the round without."""
        for source in self._sources:
            if (draft := await source.propose(wanted)) is not None:
                return draft, source.origin if draft.tokens else DraftOrigin.NONE
        return NO_DRAFT, DraftOrigin.NONE

    def record(self, round: RoundRecord) -> None:
        """Record a round."""
        self.drafter.record(round)
        if self._predicted:
            self._predicted.record(round)

    def _wanted(self, speculation: Speculation, target: Replica) -> WantedDraft:
        """Return what the budget and the target's context allow."""
        sequence, context_length = speculation.sequence, target.info.context_length
        room = context_length - len(sequence) if context_length else sys.maxsize
        most = min(speculation.max_drafts, room)
        length = min(allowed_length(self._length, target.open_sequences, self._max_sequences), most)
        is_first = not (speculation.statistics.rounds or self._waits)
        return WantedDraft(target, sequence, speculation.decided_length, length, most, is_first)

    def _allowed(self, draft: Draft, speculation: Speculation) -> Draft:
        """Return the draft up to the first token that the request excludes, which no target would accept."""
        if not draft.tokens:
            return draft
        num_before = len(speculation.sequence) - speculation.prompt_length
        length = num_allowed(self._sampling, draft.tokens, num_before)
        if self._forced:
            sequence, decided = speculation.sequence, speculation.decided_length
            length = self._forced.num_allowed(sequence, decided, draft.tokens[:length])
        return cut_draft(draft, 0, length)
