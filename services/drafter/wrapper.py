"""The part of a `DrafterEngine` that one around another engine leaves to it."""

from collections.abc import Callable, Mapping

from fly.messages import Load
from services.engine.interface import DrafterEngine
from services.lookup.index.budget import IndexBudget


class DrafterWrapper:
    """Base of an engine around another one; `info` and `open` are its own."""

    def __init__(self, engine: DrafterEngine) -> None:
        self._engine = engine

    @property
    def index_budget(self) -> IndexBudget:
        return self._engine.index_budget

    @property
    def level_gains(self) -> Mapping[str, Callable[[], float]]:
        return self._engine.level_gains

    def load(self) -> Load:
        return self._engine.load()

    async def failure(self) -> None:
        await self._engine.failure()

    async def stop(self) -> None:
        await self._engine.stop()
