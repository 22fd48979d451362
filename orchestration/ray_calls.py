"""Calls of Ray actors from an event loop, and why they fail."""

import asyncio
from typing import Any

from ray.exceptions import RayTaskError


def cause(error: BaseException) -> BaseException | None:
    """The exception that an actor's constructor raised, where that is why the actor died."""
    task_error = next((arg for arg in error.args if isinstance(arg, RayTaskError)), None)
    return getattr(task_error, "cause", None)


def reason(error: BaseException) -> str:
    """Why an actor died, in one line: the message of its constructor's exception where there is one."""
    message = str(cause(error) or "").strip() or str(error).strip().rpartition("\n")[2]
    return " ".join(message.split())


async def result(reference: Any) -> Any:
    """Awaits a Ray reference in any event loop."""
    return await asyncio.wrap_future(reference.future())
