"""Compiled grammars by hash: equal ones are compiled once, and kept within a number of bytes."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from flyserve.core.errors import InvalidRequest
from services.common.grammars.turns import Turns

_PLACES = 2
"""Grammars that are compiled at the same time."""
_MOST_OWN, _MOST_WAITING = 64, 512
"""Grammars of one tenant, and of all, that may wait for that."""
_MOST_BYTES = 256 << 20
_MOST_KEPT = 512
"""Results that are kept, faults too."""


class Compiled(Protocol):
    """A compiled grammar."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""

    @property
    def is_lost(self) -> bool:
        """True if it cannot be used any more."""


T = TypeVar("T", bound=Compiled)


class Compilations(Generic[T]):
    """Results of compilations, good and bad, by key; those that were used last are kept."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[bytes, asyncio.Task[T]] = OrderedDict()
        self._waiting: Counter[asyncio.Task[T]] = Counter()
        self._begun: set[asyncio.Task[T]] = set()
        self._turns = Turns(_PLACES, _MOST_OWN, _MOST_WAITING)

    async def result(self, key: bytes, compile_it: Callable[[], T], tenant: str) -> T:
        """Return a kept result, or call `compile_it` in a thread; tenants take turns.

        A compilation that nobody waits for any more does not begin.

        Raises:
            Exception: What `compile_it` raises; an `InvalidRequest` is kept as a result.
            Overloaded: Too many grammars wait.
        """
        task = self._tasks.get(key)
        if task is None or not _can_be_kept(task):
            task = self._tasks[key] = asyncio.create_task(self._compiled(compile_it, tenant))
            task.add_done_callback(self._keep_recent)
        self._tasks.move_to_end(key)
        self._waiting[task] += 1
        try:
            # NOTE: others may wait for the same grammar, so the one who asked first must not cancel it.
            return await asyncio.shield(task)
        finally:
            self._leave(key, task)

    def clear(self) -> None:
        """Cancel what runs, and free all results."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def _leave(self, key: bytes, task: "asyncio.Task[T]") -> None:
        self._waiting[task] -= 1
        if self._waiting[task]:
            return
        del self._waiting[task]
        if not task.done() and task not in self._begun:
            self._tasks.pop(key, None)  # at once, so that nobody begins to wait for it
            task.cancel()

    async def _compiled(self, compile_it: Callable[[], T], tenant: str) -> T:
        async with self._turns.turn(tenant):
            task = asyncio.current_task()
            assert task is not None
            self._begun.add(task)
            return await asyncio.to_thread(compile_it)

    def _keep_recent(self, ended: "asyncio.Task[T]") -> None:
        self._begun.discard(ended)
        if not ended.cancelled():
            ended.exception()  # its waiters may all have been cancelled
        num_bytes, num_kept = 0, 0
        for key, task in reversed(list(self._tasks.items())):
            if task.done():
                num_bytes, num_kept = num_bytes + _size(task), num_kept + 1
                if num_bytes > _MOST_BYTES or num_kept > _MOST_KEPT or not _can_be_kept(task):
                    del self._tasks[key]


def _can_be_kept(task: "asyncio.Task[T]") -> bool:
    if not task.done():
        return True
    if task.cancelled():
        return False
    error = task.exception()
    return isinstance(error, InvalidRequest) if error is not None else not task.result().is_lost


def _size(task: "asyncio.Task[T]") -> int:
    return 0 if task.cancelled() or task.exception() is not None else task.result().num_bytes
