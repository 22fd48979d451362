"""A TCP proxy that can drop all bytes, like the network in front of a host that has failed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Forwards bytes between clients and one server, until `swallow` is called.

    Attributes:
        address: host:port for clients.
        swallowed: Set when bytes were lost.
    """

    def __init__(self, server: str) -> None:
        self._server_host, _, port = server.rpartition(":")
        self._server_port = int(port)
        self._is_open = asyncio.Event()
        self._is_open.set()
        self.address = ""
        self.swallowed = asyncio.Event()

    def swallow(self) -> None:
        """Drop all bytes from now on, without closing any connection."""
        self._is_open = asyncio.Event()

    def recover(self) -> None:
        """Forward the bytes of new connections again; earlier ones stay silent."""
        self._is_open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client's connection."""
        is_open = self._is_open
        await is_open.wait()
        to_server, from_server = await asyncio.open_connection(self._server_host, self._server_port)
        await asyncio.gather(self._pump(reader, from_server, is_open), self._pump(to_server, writer, is_open))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, was_open: asyncio.Event
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if self._is_open is was_open:
                    writer.write(data)
                else:
                    self.swallowed.set()
            if self._is_open is was_open:
                writer.close()
        except ConnectionError:
            writer.close()


@asynccontextmanager
async def proxied(server: str) -> AsyncIterator[Proxy]:
    """Run a proxy in front of `server`, host:port, until the block ends."""
    proxy = Proxy(server)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(proxy.serve(reader, writer)))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
