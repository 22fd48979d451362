"""Hosts on loopback for the length of a test, and conditions that come true in time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from services.common.channel import open_channel
from services.common.host import Host


@asynccontextmanager
async def serving(host: Host) -> AsyncIterator[str]:
    """The address of a host that serves until the block is left."""
    await host.start()
    try:
        yield host.address
    finally:
        await host.drain(grace_s=0.0)


@asynccontextmanager
async def connected(host: Host) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a host that serves until the block is left."""
    async with serving(host) as address, open_channel(address) as channel:
        yield channel


async def becomes_true(condition: Callable[[], bool], within_s: float) -> bool:
    """Whether the condition holds before the time is over; looks every few milliseconds."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True
