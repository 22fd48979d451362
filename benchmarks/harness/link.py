"""A link between two machines: a TCP proxy that passes everything on after a delay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 65536


@asynccontextmanager
async def delayed_link(address: str, delay_s: float) -> AsyncIterator[str]:
    """Yield an address whose connections lead to `address`; bytes arrive `delay_s` later, each way.

    The delay limits no throughput. When the block ends, all connections are closed.
    """
    host, _, port = address.rpartition(":")
    connections: set[asyncio.Task[None]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                far_reader, far_writer = await asyncio.open_connection(host, int(port))
                ways = _carry(reader, far_writer, delay_s), _carry(far_reader, writer, delay_s)
                await asyncio.gather(*ways)
        finally:
            writer.close()
            connections.discard(task)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        ended = [task for task in connections if task.cancel()]
        await asyncio.gather(*ended, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Write what arrives `delay_s` after its arrival, in order, until the sender closes; then close."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def receive() -> None:
        data = b"-"
        while data:
            with suppress(OSError):
                data = b""
                data = await reader.read(_CHUNK)
            under_way.put_nowait((loop.time() + delay_s, data))

    receiving = asyncio.create_task(receive())
    try:
        while True:
            due_s, data = await under_way.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if not data:
                return
            writer.write(data)
            await writer.drain()
    finally:
        receiving.cancel()
        writer.close()
