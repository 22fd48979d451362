"""Cost of work for a request: one estimate for all kinds of it, and the only way off the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from flyserve.core.request import GenerateRequest

T = TypeVar("T")

_CHARACTER_S, _ITEM_S, _VALUE_S = 0.3e-6, 20e-6, 1e-6
_MOST_INLINE_S = 0.005
_MOST_DRAFTS = 64
"""Longest draft that a deployment may have as its default."""


def cpu_s(*, characters: int = 0, items: int = 0, values: int = 0) -> float:
    """Return the estimated CPU seconds of work, within a factor of about three.

    Args:
        characters: Characters or bytes of text, or token ids, that are parsed, tokenized or checked.
        items: Objects, such as messages, that are validated and rendered.
        values: Log-probabilities, or tokens of a response, that are turned into JSON or protobuf.
    """
    return characters * _CHARACTER_S + items * _ITEM_S + values * _VALUE_S


async def off_loop(cost_s: float, work: Callable[[], T]) -> T:
    """Run `work`; in a thread if its estimated CPU seconds would delay others on the event loop.

    In a router the threads are `FairThreads`: tenants take turns there.

    A call that is cancelled ends at once if no thread has begun the work, else with the work: until then it
    counts towards the limits of its caller.
    """
    if cost_s <= _MOST_INLINE_S:
        return work()
    has_begun = False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        return work()

    task = asyncio.create_task(asyncio.to_thread(begin))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if has_begun:
            await asyncio.wait([task])
            task.exception()
        else:
            task.cancel()
        raise


def num_values(num_tokens: int, num_logprobs: int | None) -> int:
    """Return the values of tokens: themselves, and the log-probabilities of the most likely ones at each."""
    return num_tokens * (1 + (num_logprobs or 0))


def returned_values(request: GenerateRequest, num_prompt_tokens: int, num_new_tokens: int) -> int:
    """Return the most log-probabilities that a response can have: those of its prompt and of all choices.

    The evidence of a round, which emits one token at least, has a position more than its draft.
    """
    most = request.speculation.draft_length.max
    positions = 1 + (_MOST_DRAFTS if most is None else most) if request.evidence else 1
    logprobs = 0 if request.evidence and request.logprobs is None else request.logprobs
    parts = (
        (num_prompt_tokens, request.prompt_logprobs),
        (num_new_tokens * request.n * positions, logprobs),
    )
    return sum(num_values(tokens, number) for tokens, number in parts if number is not None)
