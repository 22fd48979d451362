"""The builtin engine as a drafter: drafts on its sequences, with proposals of sub-drafters."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flyserve.core.comparison import Comparison
from flyserve.core.messages import Open
from services.common.telemetry.instrumented_stream import DraftSteps
from services.drafter.ahead import DraftingLimits
from services.drafter.session import DraftSession
from services.drafter.sub_drafters import SubDrafters
from services.engine.engine import Engine
from services.engine.future import WaitReport


class BuiltinDrafter:
    """A `DrafterEngine` on a running builtin or simulated engine."""

    def __init__(self, engine: Engine, sub_drafters: SubDrafters, limits: DraftingLimits) -> None:
        self._engine = engine
        self._sub_drafters = sub_drafters
        self._limits = limits
        self._ahead = Comparison(turn=sub_drafters.turn) if limits.is_ahead_chosen else None
        self.info, self.load, self.failure = engine.info, engine.load, engine.failure
        self.index_budget = sub_drafters.index_budget
        compared = {"sub_drafter": sub_drafters.comparison, "ahead": self._ahead}
        self.level_gains = {name: found.gain for name, found in compared.items() if found is not None}

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
                    # While a draft is late, its router decodes without it.
                    report=report if opening.standalone else None,
                )
                try:
                    yield session
                finally:
                    await session.close()
        finally:
            self._engine.close(sequence)

    async def stop(self) -> None:
        """Close the channels of the sub-drafters and stop the engine."""
        await self._sub_drafters.stop()
        await self._engine.stop()
