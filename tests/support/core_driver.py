"""Drives an engine's core, one forward per turn, on a clock that stands still."""

from collections.abc import Sequence
from typing import Any

from flyserve.core.messages import Open
from flyserve.core.sequence import SequenceUpdate
from services.engine.base import ForwardInput, Scores
from services.engine.core import EngineCore
from services.engine.future import EngineFuture
from services.engine.scheduling.scheduler import forward_inputs
from services.engine.sequence import EngineSequence
from tests.support.clock import VirtualClock

Step = tuple[EngineSequence, EngineFuture]


class CoreDriver:
    """A core over a runner; must be used in an event loop, whose tasks it does not run."""

    def __init__(self, runner: Any, max_queued: int = 0) -> None:
        self.runner = runner
        self.core = EngineCore(runner, 512, max_queued, VirtualClock())

    def open(self, ids: Sequence[int], decided: int | None = None, **opening: Any) -> EngineSequence:
        opened = EngineFuture()
        self.core.open(Open("r", len(ids), **opening), opened)
        sequence = opened.result
        assert isinstance(sequence, EngineSequence)
        sequence.apply(SequenceUpdate(1, 0, tuple(ids), len(ids) if decided is None else decided, 0))
        return sequence

    def score(
        self, sequence: EngineSequence, num_outputs: int = 1, priority: int | None = None
    ) -> EngineFuture:
        """Submit a step, of the sequence's own priority by default."""
        scored = EngineFuture()
        rank = sequence.priority if priority is None else priority
        self.core.submit(sequence.score(num_outputs), rank, 0, scored)
        return scored

    def turn(self) -> list[ForwardInput]:
        """Run a forward; return its inputs."""
        batch = self.core.next_batch()
        inputs = forward_inputs(batch)
        self.core.complete(batch, self.forward(inputs), 0, 1)
        return inputs

    def forward(self, inputs: list[ForwardInput]) -> list[Scores]:
        scores: list[Scores] = self.runner.forward(inputs)
        return scores

    def finish(self, *scored: EngineFuture) -> None:
        """Run forwards until these steps have ended."""
        for _ in range(500):
            if all(future.result or future.error for future in scored):
                return
            self.turn()
        raise AssertionError("some step does not end")
