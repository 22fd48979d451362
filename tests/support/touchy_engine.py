"""Both engines over a simulated runner that can fail and that can be blocked."""

import threading
from collections.abc import Sequence

from flyserve.core.clock import SystemClock
from flyserve.core.messages import Open, Role
from flyserve.core.sequence import SequenceUpdate
from services.engine.base import ForwardInput, Job, RunnerLost, Scores
from services.engine.config import ModelSection
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.engine.thread_engine import ThreadEngine

CONFIG = SimulatedConfig(context_length=512, base_s=0.0, per_token_s=0.0, per_token_above_s=0.0)


class TouchyRunner(SimulatedRunner):
    """A runner that raises if a batch contains token 13, and that can be blocked."""

    def __init__(self, max_sequences: int, kv_tokens: int) -> None:
        super().__init__(CONFIG, Role.TARGET, max_sequences, kv_tokens)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.largest_batch = 0
        self.num_failed = 0

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        self.entered.set()
        assert self.gate.wait(240)
        self.largest_batch = max(self.largest_batch, len(batch))
        if any(13 in item.tokens for item in batch):
            self.num_failed += 1
            raise ArithmeticError("thirteen")
        return super().forward(batch)


def lost(runner: SimulatedRunner, batch: Sequence[ForwardInput]) -> list[Scores]:
    raise RunnerLost("the group is gone")


def make_engine(kind: str, runner: TouchyRunner, max_queued: int = 2) -> Engine:
    limits = ModelSection(max_batch_tokens=256, max_queued=max_queued)
    if kind == "thread":
        return ThreadEngine(runner, limits)
    return ClockEngine(runner, SystemClock(), limits)


async def opened(engine: Engine, tokens: Sequence[int]) -> EngineSequence:
    sequence = await engine.open(Open("r", len(tokens)))
    sequence.apply(SequenceUpdate(1, 0, tuple(tokens), len(tokens), 0))
    return sequence


def decode(sequence: EngineSequence, num_tokens: int) -> Job[list[int]]:
    start = len(sequence)
    for _ in range(num_tokens):
        scores = yield from sequence.score()
        sequence.extend(scores.choices)
    return sequence.tokens.ids[start:]
