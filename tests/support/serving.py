"""Hosts on loopback for one test, and waiting for conditions."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from services.common.channel import open_channel
from services.common.host import Host

TRANSPORTS = ("127.0.0.1:0", "inprocess:tested")
"""Addresses of a host, one per transport: a socket, and the same process."""


@asynccontextmanager
async def serving(host: Host) -> AsyncIterator[str]:
    """Serve a host until the block ends; yield its address."""
    await host.start()
    try:
        yield host.address
    finally:
        await host.drain(grace_s=0.0)


@asynccontextmanager
async def connected(host: Host) -> AsyncIterator[grpc.aio.Channel]:
    """Serve a host until the block ends; yield a channel to it."""
    async with serving(host) as address, open_channel(address) as channel:
        yield channel


async def becomes_true(condition: Callable[[], bool], within_s: float) -> bool:
    """Return True if the condition becomes true within the time; check it every few milliseconds."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True
