"""Drafts beyond the response that the client has, made while the target verifies."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from functools import partial

from fly.errors import NotReady
from fly.messages import VERIFIED_TOKENS, ForwardCosts
from fly.sequence import SequenceUpdate
from services.drafter.branches import Branches
from services.drafter.drafting import Drafting
from services.drafter.level_choice import LevelChoice, SequenceRounds, TrialTurn
from services.drafter.outcomes import OutcomeRates, Round
from services.engine.engine import Engine
from services.engine.future import IdleJobs
from services.engine.sequence import EngineSequence

_MIN_FREE_MEMORY = 0.25
"""Share of KV memory that must be free for drafting ahead."""
_READ = 8
"""Most likely tokens of a position that are read to choose branches."""
_MOST_BRANCHES = 16
"""Branches of all sequences together; each adds a row to the forwards."""


@dataclass(frozen=True, slots=True)
class DraftingLimits:
    """Limits of drafting.

    Attributes:
        max_draft: Longest draft of one step, in tokens.
        ahead_sequences: Most open sequences with which the drafter drafts ahead; 0 never does.
        is_ahead_chosen: Draft ahead only while that pays, by the rounds so far.
        branches: Outcomes for which a draft is prepared ahead, beside the one that all drafts are kept.
        are_branches_chosen: Prepare them only while that pays, by the rounds so far.
    """

    max_draft: int = 64
    ahead_sequences: float = 0
    is_ahead_chosen: bool = False
    branches: int = 0
    are_branches_chosen: bool = False


class AheadChoices:
    """What a replica has learnt about drafting ahead, over all its sequences.

    Attributes:
        level: The choice whether to draft ahead; None if there is none.
        branch_level: The choice whether to prepare more outcomes than one; likewise.
        rates: The rates of outcomes.
        row_cost: Cost of another row of a forward, as a share of a forward of one row, before it is measured.
    """

    def __init__(
        self,
        limits: DraftingLimits | None = None,
        costs: ForwardCosts | None = None,
        turn: TrialTurn | None = None,
    ) -> None:
        """Create them without data; `turn` is that of the drafter's levels."""
        limits, turn = limits or DraftingLimits(), turn or TrialTurn()
        has_branch_level = limits.branches and limits.are_branches_chosen
        self.level = LevelChoice(turn=turn) if limits.is_ahead_chosen else None
        self.branch_level = LevelChoice(turn=turn) if has_branch_level else None
        self.rates = OutcomeRates()
        self.row_cost = 0.0
        if costs is not None and costs.decode_s > 0:
            self.row_cost = max(0.0, costs.verify_s / costs.decode_s - 1) / (VERIFIED_TOKENS - 1)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was drafted while the target verified.

    Attributes:
        whole: The draft that follows if all tokens before it are kept; it is part of the sequence.
        branch: The draft on a branch that the update confirms, if there is one.
        num_tokens: Tokens that were drafted on all branches.
    """

    whole: Drafting
    branch: Drafting | None
    num_tokens: int


class DraftAhead:
    """The drafts of one sequence beyond the response that its client has.

    Between `start` and `stop` the sequence belongs to a background job, which yields to all other jobs of the
    engine.
    """

    def __init__(
        self, engine: Engine, sequence: EngineSequence, limits: DraftingLimits, choices: AheadChoices
    ) -> None:
        self._engine = engine
        self._sequence = sequence
        self._limits = limits
        self._choices = choices
        self._branches = Branches(engine, sequence)
        self._running: tuple[Drafting, IdleJobs] | None = None
        self._latest: tuple[Round, int] | None = None
        self._starting: asyncio.Handle | None = None
        levels = (choices.level, choices.branch_level)
        self._rounds = [SequenceRounds(level) for level in levels if level is not None]

    def record_draft(self, num_tokens: int) -> None:
        """Record that a draft has ended, for the choice between drafting ahead and not."""
        for rounds in self._rounds:
            rounds.record_draft(num_tokens, time.perf_counter())

    def start(self, draft: Drafting, max_tokens: int) -> None:
        """Draft in the background after a finished draft, unless memory is scarce or it would not pay."""
        if max_tokens < 2 or not self._is_possible() or not _is_used(self._choices.level):
            return
        self._sequence.num_logprobs = _READ if self._num_branches() else None
        if self._sequence.num_logprobs is not None:
            # After the answer is sent: it must not wait for the choice of branches.
            loop = asyncio.get_running_loop()
            self._starting = loop.call_soon(partial(self._start_later, draft, max_tokens))
        else:
            self._start(draft, max_tokens)

    async def stop(self, update: SequenceUpdate | None = None) -> Prepared | None:
        """End the jobs and return their drafts for an update; None if there are none."""
        if self._starting is not None:
            self._starting.cancel()
        running, self._running = self._running, None
        if running is None:
            return None
        drafting, jobs = running
        await jobs.cancel()
        found = self._branches.find(update) if update is not None else None
        return Prepared(drafting, found, self._branches.num_tokens)

    def record_update(self, update: SequenceUpdate, unchanged: int) -> None:
        """Record the outcome of the latest draft, which left the first `unchanged` tokens of the sequence."""
        self._branches.keep(unchanged)
        latest, self._latest = self._latest, None
        if latest is not None and update.tokens:
            round_, start = latest
            kept = update.keep + len(update.tokens) - 1 - start
            if 0 <= kept <= round_.num_drafts:
                self._choices.rates.record(round_.ended(kept, update.tokens[-1]))

    async def close(self) -> None:
        """End the jobs and close the branches."""
        await self.stop()
        self._branches.close()

    def _num_branches(self) -> int:
        """Return the largest number of branches for this sequence now."""
        if not self._limits.branches or not _is_used(self._choices.branch_level):
            return 0
        return min(self._limits.branches, _MOST_BRANCHES // max(1, self._engine.load().sequences))

    def _start_later(self, draft: Drafting, max_tokens: int) -> None:
        with contextlib.suppress(NotReady):  # the engine has stopped meanwhile: the next step says so
            self._start(draft, max_tokens)

    def _start(self, draft: Drafting, max_tokens: int) -> None:
        """Start to draft after the whole draft, and on branches for its likely corrections."""
        branches = list[Drafting]()
        if most := self._num_branches():
            round_ = draft.round()
            self._latest = round_, draft.start
            cost = self._engine.added_idle_cost
            row_cost = self._choices.row_cost if cost is None else cost
            outcomes = self._choices.rates.likely(round_).worth(most, row_cost)
            branches = self._branches.begin(draft, outcomes, max_tokens - 1)
        drafting = draft.continued(max_tokens)
        # NOTE: the sequence's own job begins first: branches copy what it may have to copy itself.
        jobs = self._engine.run_when_idle(*(each.job() for each in (drafting, *branches)))
        self._running = drafting, jobs

    def _is_possible(self) -> bool:
        """Return True if few sequences are open, none waits, and none will soon for lack of memory."""
        load = self._engine.load()
        if load.queued or load.sequences > self._limits.ahead_sequences:
            return False
        return load.kv_capacity - load.kv_used >= load.kv_capacity * _MIN_FREE_MEMORY


def _is_used(level: LevelChoice | None) -> bool:
    """Return True unless the choice is against the level at present."""
    return level is None or level.is_used
