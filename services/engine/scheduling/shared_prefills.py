"""Compute equal prefixes once: hold back prefills whose next block another job is about to compute; pure.

A block can be reused once it was computed. So of all jobs that need the same block next, one computes it and
the others wait for as long as that job goes on with blocks that they need too. Nothing is stored between two
turns: a job that ends, or loses its memory, is no longer among the jobs, and another one takes its place.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flyserve.core.blocks import BLOCK_TOKENS, BlockKey
from services.engine.base import ForwardInput, KvSlot
from services.engine.scheduling.scheduler import ScheduledJob


@dataclass(slots=True)
class SharedPrefills:
    """The jobs that do not run with their present input.

    Attributes:
        held: Slots of the jobs that wait for another one.
        reusable: Jobs that can reuse more blocks than when their input was made.
    """

    held: set[KvSlot] = field(default_factory=set)
    reusable: list[ScheduledJob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A job, its input, and the number of its blocks that are computed: its own and reusable ones."""

    job: ScheduledJob
    item: ForwardInput
    num_computed: int

    @property
    def is_behind(self) -> bool:
        """True if it can reuse blocks."""
        return self.num_computed > self.item.start // BLOCK_TOKENS

    @property
    def will_share(self) -> bool:
        """True if others may reuse its next block."""
        return self.num_computed < self.item.num_shared

    @property
    def rank(self) -> tuple[int, bool, int]:
        return -self.job.priority, self.is_behind, self.job.number


def share_prefills(
    jobs: Iterable[ScheduledJob], num_reusable: Callable[[ForwardInput], int]
) -> SharedPrefills:
    """Decide which prefills wait for others.

    Of several jobs with the same next block, the one of the highest priority computes it; then the one that
    has computed the blocks before it, then the oldest.

    Args:
        jobs: All jobs that may run in this turn.
        num_reusable: Returns how many blocks of an input, from the front, some other slot holds.
    """
    shared, next_blocks = SharedPrefills(), defaultdict[BlockKey, list[_Prefill]](list)
    for job in jobs:
        item = job.next_input
        if item is None or not item.blocks:
            continue
        prefill = _Prefill(job, item, max(item.start // BLOCK_TOKENS, num_reusable(item)))
        if prefill.num_computed < len(item.blocks):
            next_blocks[item.blocks[prefill.num_computed]].append(prefill)
        elif prefill.is_behind:
            shared.reusable.append(job)
    for prefills in next_blocks.values():
        first = min(filter(lambda each: each.will_share, prefills), key=lambda each: each.rank, default=None)
        for prefill in prefills:
            if first is not None and prefill is not first:
                shared.held.add(prefill.item.slot)
            elif prefill.is_behind:
                shared.reusable.append(prefill.job)
    return shared
