"""Messages between a stream and its sequences: order, limits, ends."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import InvalidRequest, NotReady
from flyserve.v1 import target_pb2
from flyserve.wire.batches import VERIFY
from services.common.shared_stream.client import SharedStream
from services.common.shared_stream.mailbox import (
    _BATCH_BYTES,
    ENOUGH,
    MOST_MESSAGE_BYTES,
    MOST_MESSAGES,
    Inbox,
    Outbox,
)


class Sized:
    """A message of some size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def ByteSize(self) -> int:
        return self.size


@given(st.lists(st.sampled_from([1, 1000, _BATCH_BYTES - 1, _BATCH_BYTES, 3 * _BATCH_BYTES]), max_size=3000))
def test_batches_have_all_messages_in_order_and_no_more_than_fit(sizes: list[int]) -> None:
    batches: list[list[Sized]] = []

    async def write(batch: list[Sized]) -> None:
        batches.append(batch)

    async def run() -> None:
        outbox = Outbox(write)
        for message in sent:
            outbox.put(message)
        outbox.close()
        await outbox.sent()

    sent = [Sized(size) for size in sizes]
    asyncio.run(run())
    assert [message for batch in batches for message in batch] == sent
    for batch in batches:
        assert 0 < len(batch) <= MOST_MESSAGES
        assert len(batch) == 1 or sum(message.size for message in batch) <= _BATCH_BYTES


class SlowWrites:
    """Writes that end when `is_written` is set."""

    def __init__(self) -> None:
        self.batches: list[list[Sized]] = []
        self.is_written = asyncio.Event()

    async def write(self, batch: list[Sized]) -> None:
        self.batches.append(batch)
        await self.is_written.wait()


async def test_what_is_ready_during_a_write_leaves_in_one_batch() -> None:
    writes = SlowWrites()
    outbox = Outbox(writes.write)
    first, others = Sized(1), [Sized(1) for _ in range(2 * ENOUGH)]
    outbox.put(first, 1)
    for message in others:
        outbox.put(message, 1)
    writes.is_written.set()
    outbox.close()
    await outbox.sent()
    assert writes.batches == [[first], others]


@pytest.mark.parametrize(("num_senders", "num_waiting"), [(1, 0), (3, 2), (1000, ENOUGH - 1)])
async def test_a_batch_leaves_in_the_turn_that_completes_it(num_senders: int, num_waiting: int) -> None:
    writes = SlowWrites()
    outbox = Outbox(writes.write)
    messages = [Sized(1) for _ in range(num_waiting + 1)]
    for message in messages[:-1]:
        outbox.put(message, num_senders)
    assert not writes.batches, "others may become ready in this turn"
    outbox.put(messages[-1], num_senders)
    assert writes.batches == [messages]


async def test_a_batch_that_others_could_join_leaves_in_the_next_turn() -> None:
    writes = SlowWrites()
    outbox = Outbox(writes.write)
    messages = [Sized(1), Sized(1)]
    for message in messages:
        outbox.put(message, 3)
    await asyncio.sleep(0)
    assert writes.batches == [messages]


@pytest.mark.parametrize("error", [NotReady("lost"), asyncio.CancelledError()])
async def test_a_write_that_fails_ends_the_outbox(error: BaseException) -> None:
    is_failing = asyncio.Event()

    async def write(batch: list[Sized]) -> None:
        batches.append(batch)
        await is_failing.wait()
        raise error

    batches: list[list[Sized]] = []
    outbox = Outbox(write)
    sent = asyncio.create_task(outbox.sent())
    outbox.put(Sized(1), 1)
    outbox.put(Sized(1), 1)
    is_failing.set()
    await asyncio.wait([sent])
    outbox.put(Sized(1), 1)
    outbox.close()
    assert len(batches) == 1, "nothing follows a write that failed"
    with pytest.raises(type(error)):
        sent.result()


async def test_a_receiver_that_does_not_read_stops_its_sender() -> None:
    writes = SlowWrites()
    outbox = Outbox(writes.write)
    for _ in range(3):
        outbox.put(Sized(MOST_MESSAGE_BYTES), 1)
    waiting = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    writes.is_written.set()
    await waiting


async def test_a_message_that_no_receiver_takes_is_refused() -> None:
    outbox = Outbox(SlowWrites().write)
    assert outbox.put(Sized(MOST_MESSAGE_BYTES)) == MOST_MESSAGE_BYTES
    with pytest.raises(InvalidRequest, match=f"has {MOST_MESSAGE_BYTES + 1} bytes"):
        outbox.put(Sized(MOST_MESSAGE_BYTES + 1))


@pytest.mark.parametrize("error", [None, NotReady("lost")])
async def test_an_inbox_ends_after_its_last_message(error: Exception | None) -> None:
    inbox = Inbox[Sized]()
    first, second = Sized(1), Sized(2)
    reading = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    assert inbox.put(first) and await reading is first
    assert inbox.put(second)
    inbox.end(error)
    inbox.end(NotReady("the first end counts"))
    assert inbox.put(Sized(3)) and await inbox.get() is second
    if error is None:
        assert [each async for each in inbox] == []
    else:
        with pytest.raises(NotReady, match="lost"):
            await inbox.get()


def test_an_inbox_takes_few_messages_that_nobody_reads() -> None:
    inbox = Inbox[Sized]()
    assert [inbox.put(Sized(1)) for _ in range(17)] == [True] * 16 + [False]


class OpenCall:
    """A client's call whose server does not answer."""

    def __init__(self) -> None:
        self.written: list[list[int]] = []

    async def write(self, batch: target_pb2.VerifyRequests) -> None:
        self.written.append([request.sequence for request in batch.requests])

    async def read(self) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        """Do nothing: no server has it."""


async def test_a_message_leaves_at_once_if_its_sequence_is_alone_else_with_those_of_others() -> None:
    call = OpenCall()
    stream = SharedStream(call, VERIFY, lambda stream: None)
    first = stream.open()
    first.send(target_pb2.VerifyRequest())
    assert call.written == [[1]]
    second = stream.open()
    first.send(target_pb2.VerifyRequest())
    assert call.written == [[1]], "the second sequence may send in this turn"
    second.send(target_pb2.VerifyRequest())
    assert call.written == [[1], [1, 2]]
