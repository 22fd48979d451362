"""A host for the time of a block, in the running event loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.common.host import Host


@asynccontextmanager
async def serving(host: Host) -> AsyncIterator[str]:
    """Its address; it serves until the block is left, and then ends its calls at once."""
    await host.start()
    try:
        yield host.address
    finally:
        await host.drain(0.0)
