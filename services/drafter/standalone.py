"""Standalone sequences: decoded by a drafter without a target, with the capacity that drafts leave."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from flyserve.core.errors import InvalidRequest, Overloaded
from flyserve.core.limits import MOST_PRIORITY
from flyserve.core.messages import ModelInfo, Open
from flyserve.core.types import Coupling
from services.common.telemetry.instrumented_stream import DraftSteps
from services.drafter.wrapper import DrafterWrapper
from services.engine.future import WaitReport
from services.engine.interface import DrafterEngine

_KV_SHARE = 1 / 2
"""Share of the KV memory up to which a standalone sequence is admitted beside others."""
_RETRY_AFTER_S = 1.0


class StandaloneDrafter(DrafterWrapper):
    """A `DrafterEngine` that also serves standalone sequences, a limited number at once.

    Drafts for targets come first: a standalone sequence is refused where it would take places or memory that
    drafts may need, and it has the lowest priority: its forwards run last, and its memory is taken first.
    Its tokens are those of plain decoding, so a sampled one is drawn with the shared noise.
    """

    def __init__(self, engine: DrafterEngine, most: int) -> None:
        """Serve at most `most` standalone sequences at once; 0 serves none."""
        super().__init__(engine)
        self._most = most
        self._num_open = 0

    @property
    def info(self) -> ModelInfo:
        return replace(self._engine.info, standalone_sequences=self._most)

    @asynccontextmanager
    async def open(self, opening: Open, report: WaitReport | None = None) -> AsyncIterator[DraftSteps]:
        if not opening.standalone:
            async with self._engine.open(opening, report) as session:
                yield session
            return
        self._check(opening)
        sampling = replace(opening.sampling, coupling=Coupling.SHARED_NOISE)
        lowered = replace(opening, priority=-MOST_PRIORITY, sampling=sampling)
        self._num_open += 1
        try:
            async with self._engine.open(lowered, report) as session:
                yield session
        finally:
            self._num_open -= 1

    def _check(self, opening: Open) -> None:
        """Raise Overloaded if there is no capacity left for a standalone sequence."""
        if not self._most:
            raise InvalidRequest.of("standalone", "is set, this drafter only drafts for targets")
        if self._num_open >= self._most:
            found = f"{self._num_open} sequences without a target are open"
            limit = f"at most {self._most} are allowed (drafter.standalone_sequences)"
            raise Overloaded(f"{found}, {limit}", _RETRY_AFTER_S)
        load, needed = self._engine.load(), opening.prompt_length + opening.max_new_tokens
        if load.sequences and load.kv_used + needed > load.kv_capacity * _KV_SHARE:
            found = f"{load.kv_used} of {load.kv_capacity} KV positions are in use and {needed} are needed"
            raise Overloaded(f"{found}: more than half is left to drafts for targets", _RETRY_AFTER_S)
