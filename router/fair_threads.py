"""Threads for work off the event loop, in which tenants take turns."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from router.security.peers import current_tenant

_Job = tuple[Future[Any], Callable[[], Any]]


class FairThreads(ThreadPoolExecutor):
    """Pool of threads whose free ones take the oldest work of the tenant whose last turn is the longest ago.

    The tenant is that of the task which submits the work, as by `asyncio.to_thread`.
    """

    def __init__(self, max_workers: int | None = None) -> None:
        super().__init__(max_workers, thread_name_prefix="work")
        self._turn = threading.Lock()
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue work behind that of the same tenant."""
        future: Future[Any] = Future()
        with self._turn:  # so that no thread looks for the work before it is queued
            super().submit(self._run_next)
            jobs = self._waiting.setdefault(current_tenant(), deque())
            jobs.append((future, partial(work, *args, **kwargs)))
        return future

    def _run_next(self) -> None:
        future, work = self._next()
        if not future.set_running_or_notify_cancel():
            return
        try:
            found = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)

    def _next(self) -> _Job:
        with self._turn:
            tenant, jobs = next(iter(self._waiting.items()))
            job = jobs.popleft()
            if jobs:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]
            return job
