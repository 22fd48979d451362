"""Blocking work of an event loop on a thread that holds up neither the loop nor the end of the process."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run `work` on a thread of its own and return its result, such as a model that it has loaded.

    Cancelled, it returns at once. The work cannot be ended: its thread goes on, but `asyncio.to_thread` would
    let the end of the event loop, and of the process, wait for it.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="flyserve-blocking", daemon=True).start()
    return await asyncio.wrap_future(result)
