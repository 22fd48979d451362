import asyncio
from collections.abc import AsyncIterator

import pytest

from flyserve import AsyncClient, StreamBroken
from flyserve.core.errors import DeadlineExceeded, FlyServeError, InvalidRequest, NotReady
from flyserve.wire.generation import request_from_wire
from tests.unit.flyserve.fake_generation import FakeGeneration, fake_generation, rejected_address


@pytest.fixture
async def served() -> AsyncIterator[tuple[FakeGeneration, AsyncClient]]:
    with fake_generation() as (service, address):
        async with AsyncClient(address) as client:
            yield service, client


async def test_it_does_what_the_blocking_client_does(served: tuple[FakeGeneration, AsyncClient]) -> None:
    _, client = served
    whole = await client.generate("hello")
    stream = client.stream("hello")
    assert "".join([chunk.text async for chunk in stream]) == whole.text == "the quick fox"
    assert stream.response.choices == whole.choices
    assert (await client.info()).target.model_id == "big"
    assert [piece.id for piece in await client.tokenize("the fox")] == [1, 3]


async def test_a_chat_is_answered_as_by_the_blocking_client(
    served: tuple[FakeGeneration, AsyncClient],
) -> None:
    service, client = served
    message = {"role": "user", "content": "Hello"}
    assert (await client.chat([message], temperature=0.5, stop="x")).text == "the quick fox"
    assert "".join([chunk.text async for chunk in await client.stream_chat("Hello", mode="exact")]) == (
        "the quick fox"
    )
    assert service.conversations == [[("user", "Hello")]] * 2
    first, second = map(request_from_wire, service.requests)
    assert first.prompt == second.prompt and first.stop == ("x",) and second.speculation.mode == "exact"
    with pytest.raises(TypeError, match=r"^AsyncClient\.chat\(\) has no keyword argument 'tempature'"):
        await client.chat("Hello", tempature=1.0)  # type: ignore[call-arg]


async def test_a_server_that_is_away_for_a_while_is_asked_again(
    served: tuple[FakeGeneration, AsyncClient],
) -> None:
    service, client = served
    service.rejections_left = 2
    assert (await client.generate("away")).text
    service.rejections_left = 2
    assert len([chunk async for chunk in client.stream("busy")]) == 2


async def test_errors_are_typed(served: tuple[FakeGeneration, AsyncClient]) -> None:
    _, client = served
    with pytest.raises(InvalidRequest, match="max_new_tokens is 9000"):
        await client.generate("bad")
    with pytest.raises(DeadlineExceeded):
        [chunk async for chunk in client.stream("endless", timeout_s=0.05)]
    address = rejected_address()
    async with AsyncClient(address) as other:
        with pytest.raises(
            NotReady, match=f"nothing answers at {address}; start a deployment with: flyserve up"
        ):
            await other.info()
    with pytest.raises(FlyServeError, match="the client is closed"):
        await other.info()


async def test_another_task_may_close_a_stream(served: tuple[FakeGeneration, AsyncClient]) -> None:
    service, client = served
    stream = client.stream("endless")
    await anext(stream)
    rest = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    await stream.aclose()
    assert await rest is None
    assert await asyncio.to_thread(service.has_ended.wait, 10)


async def test_closing_the_client_ends_its_calls_with_an_error(
    served: tuple[FakeGeneration, AsyncClient],
) -> None:
    service, client = served
    stream = client.stream("endless")
    await anext(stream)
    whole, rest = asyncio.create_task(client.generate("hanging")), asyncio.create_task(anext(stream))
    assert await asyncio.to_thread(service.has_begun.wait, 240)
    await client.close()
    with pytest.raises(FlyServeError, match="the client is closed"):
        await whole
    with pytest.raises(StreamBroken, match=r"broke after 2 tokens: the client is closed; it cannot be"):
        await rest


async def test_a_task_that_is_cancelled_ends_as_cancelled(served: tuple[FakeGeneration, AsyncClient]) -> None:
    service, client = served
    task = asyncio.create_task(client.generate("hanging"))
    assert await asyncio.to_thread(service.has_begun.wait, 240)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
