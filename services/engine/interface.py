"""The interface between a service and its engine, whatever computes the model."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from flyserve.core.messages import Load, ModelInfo, Open
from services.common.telemetry.instrumented_stream import DraftSteps, VerifySteps
from services.engine.future import WaitReport
from services.lookup.index.budget import IndexBudget

Steps = TypeVar("Steps", VerifySteps, DraftSteps, covariant=True)


class RunningEngine(Protocol):
    """A running engine of any kind."""

    @property
    def info(self) -> ModelInfo:
        """The model; its context length is what model and memory allow."""

    def load(self) -> Load:
        """Return the current load; may be called at any time."""

    async def failure(self) -> None:
        """Return when the engine has failed for good."""

    async def stop(self) -> None:
        """End all sessions with `NotReady`, and everything that the engine started."""


class ServedEngine(RunningEngine, Protocol[Steps]):
    """A running engine that opens sequences, whose sessions apply updates and answer steps.

    A target's session answers a `VerifyStep` with the choices after the last tokens, and an `Extend` with
    tokens that the model decodes by itself. A drafter's session answers a `DraftStep` with a draft.
    """

    def open(self, opening: Open, report: WaitReport | None = None) -> AbstractAsyncContextManager[Steps]:
        """Open a sequence; it is closed, and its memory freed, when the context is left.

        A target waits for a place and for memory, and calls `report` if it has to wait; a drafter refuses.

        Raises:
            InvalidRequest: A field of `opening` breaks a limit, or asks for what the engine cannot do.
            Overloaded: The queue is full, or a drafter has no place.
            NotReady: The engine is not running.
        """


TargetEngine = ServedEngine[VerifySteps]


class DrafterEngine(ServedEngine[DraftSteps], Protocol):
    """A running engine that drafts."""

    @property
    def index_budget(self) -> IndexBudget:
        """The tokens in its look-up indexes."""

    @property
    def level_gains(self) -> Mapping[str, Callable[[], float]]:
        """For each level of drafting that rounds decide on: the factor by which it makes them faster."""
