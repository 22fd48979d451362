"""The builtin engine as a drafter: drafts on its sequences, with proposals of sub-drafters."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from fly.comparison import Comparison
from fly.messages import Load, ModelInfo, Open
from services.common.telemetry.instrumented_stream import DraftSteps
from services.drafter.ahead import DraftingLimits
from services.drafter.session import DraftSession
from services.drafter.sub_drafters import SubDrafters
from services.engine.engine import Engine
from services.engine.future import WaitReport
from services.lookup.index.budget import IndexBudget


class BuiltinDrafter:
    """A `DrafterEngine` on a running builtin or simulated engine."""

    def __init__(self, engine: Engine, sub_drafters: SubDrafters, limits: DraftingLimits) -> None:
        self._engine = engine
        self._sub_drafters = sub_drafters
        self._limits = limits
        self._ahead = Comparison(turn=sub_drafters.turn) if limits.is_ahead_chosen else None

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def index_budget(self) -> IndexBudget:
        return self._sub_drafters.index_budget

    @property
    def level_gains(self) -> Mapping[str, Callable[[], float]]:
        choices = {"sub_drafter": self._sub_drafters.level, "ahead": self._ahead}
        return {name: choice.gain for name, choice in choices.items() if choice is not None}

    def load(self) -> Load:
        return self._engine.load()

    @asynccontextmanager
    async def open(self, opening: Open, report: WaitReport | None = None) -> AsyncIterator[DraftSteps]:
        # A full drafter refuses at once: its router decodes without drafts meanwhile.
        sequence = await self._engine.open(opening, queue=False)
        try:
            async with self._sub_drafters.session(opening, self._engine.info.vocab_size) as sub_drafter:
                session = DraftSession(
                    engine=self._engine,
                    sequence=sequence,
                    sub_drafter=sub_drafter,
                    limits=self._limits,
                    ahead=self._ahead,
                )
                try:
                    yield session
                finally:
                    await session.close()
        finally:
            self._engine.close(sequence)

    async def failure(self) -> None:
        await self._engine.failure()

    async def stop(self) -> None:
        """Close the channels of the sub-drafters and stop the engine."""
        await self._sub_drafters.stop()
        await self._engine.stop()
