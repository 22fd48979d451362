"""Drafts from a drafter: requested, awaited as long as it pays, and taken."""

import math
from collections.abc import Iterator
from functools import partial

from flyserve.core.clock import Clock
from flyserve.core.lookup_benefit import LookupBenefit
from flyserve.core.messages import Draft
from flyserve.core.response import Statistics
from flyserve.core.round_record import ArrivedDraft, DraftOrigin, RoundRecord
from router.generation.drafts.drafter_session import DrafterSession
from router.generation.drafts.patience import Patience
from router.generation.drafts.source import NO_DRAFT, WantedDraft
from router.requests.planning import SpeculationPlan

_MOST_REQUESTS = 3
"""Requests for the draft of a round that must have one: if a drafter fails, another one is asked."""
_USUAL_LATE_ROUNDS = 8
"""Late rounds of a response that need no warning, as while the drafter computes its prompt."""


class DrafterDrafts:
    """The drafts of one response from a drafter.

    Attributes:
        session: The session with the drafter.
        arrived: Drafts that have arrived in the present round.
        late_s: Seconds of the wait for a draft that did not come in time; None if none was late.
        is_missed: True if the present round wanted a draft, and no drafter was available.
    """

    origin = DraftOrigin.DRAFTER

    def __init__(
        self,
        session: DrafterSession,
        plan: SpeculationPlan,
        patience: float,
        lookup: LookupBenefit | None,
        clock: Clock,
        can_pay: bool = True,
        has_drafter: bool = True,
    ) -> None:
        """Begin a response; see `Patience`.

        `lookup` weighs the drafts of drafters that look tokens up. If drafts cannot pay, none is requested.
        A deployment without drafters misses none.
        """
        self.session = session
        self._waits = plan.rule.reproducible_drafts
        self._patience = Patience(math.inf if self._waits else patience)
        self._lookup = lookup
        self._clock = clock
        self._can_pay = can_pay
        self._has_drafter = has_drafter
        self._waited_s = 0.0
        self._num_missed = self._num_late = 0
        self._reset()

    def _reset(self) -> None:
        self.arrived: list[ArrivedDraft] = []
        self.late_s: float | None = None
        self.is_missed = False

    @property
    def is_drafting(self) -> bool:
        """True if a draft was requested and not taken yet."""
        return self.session.is_drafting

    @property
    def tokens_until_request(self) -> float:
        """Tokens that the target decodes before the next draft is requested; infinity sets no number."""
        if self._waits:
            return math.inf
        return (self._lookup and self._lookup.tokens_until_request) or math.inf

    @property
    def most_steps(self) -> float:
        """Most tokens that the target may decode by itself in a round without a draft.

        Reproducible drafts of a look-up are requested after every token: a longer step depends on times.
        """
        return 1 if self._waits and self._lookup else self.tokens_until_request

    def begin_round(self, wanted: WantedDraft) -> None:
        """Begin a round; in the first one, request a draft that a later round uses."""
        self._reset()
        if self._can_pay and wanted.is_first and wanted.most > 1:
            self.session.request(wanted, min(wanted.length + 1, wanted.most))

    async def propose(self, wanted: WantedDraft) -> Draft | None:
        """Return a draft; an empty one if it is late or not worthwhile; None if there is none."""
        if not self._can_pay:
            return None
        if wanted.is_first:
            return NO_DRAFT
        if not self.is_drafting:
            return None if self.tokens_until_request < math.inf else await self._requested(wanted)
        arrived = await self._arrival(wanted)
        if self.late_s is not None:
            return NO_DRAFT
        if arrived is not None and arrived.draft.tokens:
            return self._worthwhile(arrived)
        return await self._requested(wanted)

    async def _requested(self, wanted: WantedDraft) -> Draft | None:
        """Return a draft that is requested now."""
        for _ in range(_MOST_REQUESTS if self._waits else 1):
            if not self.session.request(wanted, wanted.length):
                break
            arrived = await self._arrival(wanted)
            if arrived is not None:
                return self._worthwhile(arrived)
            if self.late_s is not None:
                return NO_DRAFT
        self.is_missed = self._has_drafter
        return None

    async def _arrival(self, wanted: WantedDraft) -> ArrivedDraft | None:
        """Wait for the draft as long as it can pay for; return None if it is late, or failed."""
        started, verification_s = self._clock.now(), wanted.target.pace.usual_s or 0.0
        is_here = await self.session.arrives(partial(self._patience.limit_s, verification_s))
        self._waited_s += self._clock.now() - started
        if not is_here:
            self.late_s, self._waited_s = self._waited_s, 0.0
            return None
        if (arrived := self.session.take(wanted.sequence, wanted.most)) is None:
            return None
        self.arrived.append(arrived._replace(waited_s=self._waited_s))
        self._waited_s = 0.0
        return self.arrived[-1]

    def _worthwhile(self, arrived: ArrivedDraft) -> Draft:
        """Return no draft if this one was looked up and is not worth its verification."""
        draft = arrived.draft
        if self._waits or self._lookup is None or self._lookup.accept(draft.tokens, arrived.waited_s):
            return draft
        return NO_DRAFT

    def record(self, round: RoundRecord) -> None:
        """Record a round: what its draft was worth shows how long to wait for the next one."""
        self._patience.record(round)
        if round.origin is self.origin:
            self.session.record_accepted(round.num_accepted, len(round.drafts))
        self._num_missed += round.is_missed
        self._num_late += round.late_s is not None

    def warnings(self, statistics: Statistics) -> Iterator[str]:
        """Yield the reasons why rounds had no draft; a few late drafts are usual."""
        num_rounds = statistics.rounds
        if not self._can_pay:
            yield "no drafter was asked: by the costs of the models its drafts cannot pay"
        if self._num_missed:
            yield f"{self._num_missed} of {num_rounds} rounds had no draft: {self.session.fault}"
        if alarm := self.session.alarm:
            yield alarm
        if self._waits and self._num_missed:
            yield "speculation.reproducible_drafts: this response may differ from run to run"
        if self._num_late > max(_USUAL_LATE_ROUNDS, num_rounds / 2):
            yield f"{self._num_late} of {num_rounds} rounds did not wait for a late draft"
