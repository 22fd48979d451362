"""Writes down the latest document, one write at a time, without waiting for ever for its store."""

import asyncio

from orchestration.control.state_store import Store

_PATIENCE_S = 2.0


class Journal:
    """For one event loop; the store's calls block, and run in threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._written: bytes | None = None
        self._write: asyncio.Task[None] | None = None

    async def read(self) -> bytes | None:
        """What was written last."""
        return await asyncio.to_thread(self._store.read)

    async def holds(self, document: bytes) -> bool:
        """Writes a document unless it is the last one; False where the store does not answer in good time.

        A write that takes longer goes on, and the next document waits for it.
        """
        if self._write is not None and not await self._ends(self._write):
            return False
        if document == self._written:
            return True
        self._write = asyncio.create_task(self._put(document), name="write")
        return await self._ends(self._write)

    async def delete(self) -> None:
        """Leaves nothing written."""
        await asyncio.to_thread(self._store.delete)

    async def _ends(self, write: "asyncio.Task[None]") -> bool:
        await asyncio.wait({write}, timeout=_PATIENCE_S)
        if not write.done():
            return False
        self._write = None
        write.result()
        return True

    async def _put(self, document: bytes) -> None:
        await asyncio.to_thread(self._store.write, document)
        self._written = document
