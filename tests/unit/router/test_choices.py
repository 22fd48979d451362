"""Sending chunks of several choices to one client."""

import asyncio

import pytest

from flyserve.core.errors import DeadlineExceeded
from flyserve.core.response import Chunk
from router.generation.choices import serialized, with_write_timeout


async def test_chunks_are_sent_one_after_the_other() -> None:
    begun, ended = list[int](), list[int]()

    async def emit(chunk: Chunk) -> None:
        assert begun == ended
        begun.append(chunk.choice_index)
        await asyncio.sleep(0)
        ended.append(chunk.choice_index)

    send = serialized(emit)
    await asyncio.gather(*(send(Chunk(text="", choice_index=index)) for index in range(4)))
    assert ended == [0, 1, 2, 3]


async def test_after_a_chunk_that_the_client_did_not_take_none_is_sent() -> None:
    sent = list[int]()

    async def emit(chunk: Chunk) -> None:
        sent.append(chunk.choice_index)
        await asyncio.Event().wait()

    with with_write_timeout(emit, 0.01) as in_time:
        send = serialized(in_time)
        first, second = (
            asyncio.ensure_future(send(Chunk(text="", choice_index=index))) for index in range(2)
        )
        with pytest.raises(DeadlineExceeded, match=r"received nothing for 0\.01 s"):
            await first
        assert not (await asyncio.wait([second], timeout=0.1))[0]
        assert sent == [0]
        second.cancel()
