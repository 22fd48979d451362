"""`python -m benchmarks.soak.vanishing ADDRESS`: opens streams, says so, and reads on until it is killed."""

import asyncio
import sys

from flyserve import AsyncClient, Mode, SpeculationParams
from flyserve.async_client import AsyncStream

_MODES = (Mode.PLAIN, Mode.EXACT, Mode.FLY, Mode.EXACT)
_NEW_TOKENS = 600


async def main(address: str) -> None:
    """Says `open` once every stream has begun."""
    async with AsyncClient(address, retries=0) as client, asyncio.TaskGroup() as group:
        streams = [
            client.stream([40 + number] * 24, _NEW_TOKENS, speculation=SpeculationParams(mode=mode))
            for number, mode in enumerate(_MODES)
        ]
        await asyncio.gather(*(anext(stream) for stream in streams))
        print("open", flush=True)
        for stream in streams:
            group.create_task(_read(stream))


async def _read(stream: AsyncStream) -> None:
    async for _ in stream:
        pass


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
