"""Finished responses are linked in short pieces, by one task that ends with the service."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flyserve.core.messages import DraftStep, Open, Role
from flyserve.core.sequence import SequenceMirror, TokenSequence
from services.common.telemetry.process import Telemetry
from services.lookup import servicer as servicer_module
from services.lookup.config import SuffixConfig
from services.lookup.index.response_cache import MAX_LINKED, ResponseCache
from services.lookup.servicer import LookupServicer

LONG = 130_000


@pytest.fixture
def servicer(monkeypatch: pytest.MonkeyPatch) -> LookupServicer:
    """A drafter with a cache of the default size."""
    monkeypatch.setattr(servicer_module, "_PAUSE_S", 0.0)
    return LookupServicer(SuffixConfig(role=Role.DRAFTER), Telemetry())


async def draft(servicer: LookupServicer, ids: list[int], decided: int, max_tokens: int = 0) -> list[int]:
    """Return a draft after a sequence, whose prompt is its first token; then close its session."""
    async with servicer._open(Open("test", 1)) as session:
        update = SequenceMirror().update(TokenSequence(ids), (), decided)
        return list((await session.step(DraftStep(update, max_tokens))).tokens)


async def respond(servicer: LookupServicer, ids: list[int]) -> None:
    """Finish a response all of whose tokens are decided."""
    await draft(servicer, ids, len(ids))


async def until_linked(servicer: LookupServicer) -> None:
    assert servicer._linking is not None
    await servicer._linking


@contextmanager
def linked_tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[int]]:
    """Count the tokens that are linked in each turn of the event loop."""
    linked, turn, link = Counter[int](), 0, ResponseCache._link

    def count(cache: ResponseCache, response: Any, first: int, stop: int) -> None:
        linked[turn] += stop - first
        link(cache, response, first, stop)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(ResponseCache, "_link", count)
    turns = asyncio.create_task(count_turns())
    try:
        yield linked
    finally:
        turns.cancel()


async def test_a_long_response_is_linked_in_short_pieces(
    servicer: LookupServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = list(range(LONG))
    with linked_tokens(monkeypatch) as linked:
        await respond(servicer, ids)
        assert not linked, "closing the session only stores the response"
        await until_linked(servicer)
    assert sum(linked.values()) == LONG and max(linked.values()) <= MAX_LINKED
    for start in (0, MAX_LINKED - 8, LONG // 2, LONG - 28):
        assert await draft(servicer, [LONG, *ids[start : start + 20]], 0, 8) == ids[start + 20 : start + 28]


async def test_many_sessions_that_close_at_once_are_linked_in_short_pieces(
    servicer: LookupServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = [list(range(start, start + 400)) for start in range(0, 40_000, 400)]
    with linked_tokens(monkeypatch) as linked:
        await asyncio.gather(*(respond(servicer, ids) for ids in responses))
        await until_linked(servicer)
    assert sum(linked.values()) == 40_000 and max(linked.values()) <= MAX_LINKED
    for ids in responses:
        assert await draft(servicer, [50_000, *ids[:20]], 0, 8) == ids[20:28]


async def test_a_response_is_linked_while_an_earlier_one_still_is(servicer: LookupServicer) -> None:
    await respond(servicer, list(range(10_000)))
    first = servicer._linking
    await asyncio.sleep(0)
    await respond(servicer, list(range(20_000, 20_100)))
    assert servicer._linking is first, "one task links all"
    await until_linked(servicer)
    assert await draft(servicer, [1, *range(20_000, 20_020)], 0, 3) == [20_020, 20_021, 20_022]


async def test_linking_ends_with_the_service(servicer: LookupServicer) -> None:
    await respond(servicer, list(range(10_000)))
    await asyncio.sleep(0)
    assert servicer._linking is not None and not servicer._linking.done()
    await servicer.close()
    ended = servicer._linking
    assert ended.cancelled() and servicer._engine.link(), "not all is linked"
    await respond(servicer, [1, 2, 3])
    assert servicer._linking is ended, "a session that ends later starts no task"
