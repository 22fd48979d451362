"""Measure a target on vLLM in this process: `measure.py FOLDER`, with a model of a context of 16k tokens.

Prints one JSON object: the costs that the engine has measured, and figures by length of the sequence. A
round scores 15 drafts, and one token is added after it.
"""

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from fly.messages import Open, Verification, VerifyStep
from fly.sequence import SequenceMirror, TokenSequence
from services.common.telemetry.instrumented_stream import VerifySteps
from services.engine.vllm.engine import VllmEngine, start_engine
from services.target.config import VllmTargetConfig
from services.target.vllm import VllmTarget

LENGTHS, ROUNDS, DRAFT = (2_000, 8_000), 40, 15
VOCAB_SIZE = 640


class Instant:
    """Repeats the latest answer of a real engine at once: what is left is the adapter's own time."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.is_instant = False
        self._latest: Any = None

    async def generate(self, *request: Any, **fields: Any) -> AsyncIterator[Any]:
        if not self.is_instant:
            async for output in self.llm.generate(*request, **fields):
                self._latest = output
        yield self._latest

    def shutdown(self, timeout: float | None = None) -> None:
        self.llm.shutdown(timeout)


class Rounds:
    """Rounds of one sequence of random tokens."""

    def __init__(self, session: VerifySteps, length: int) -> None:
        self._random = random.Random(length)
        self._session, self._mirror = session, SequenceMirror()
        self._sequence = TokenSequence(self._tokens(length))
        self.costs_ms: dict[str, list[float]] = {"wall": [], "thread": [], "vllm": []}

    async def play(self, num_drafts: int) -> Verification:
        """Score random drafts, then add a token."""
        drafts = self._tokens(num_drafts)
        started, spent = time.perf_counter(), time.thread_time()
        update = self._mirror.update(self._sequence, drafts, len(self._sequence))
        answer = await self._session.step(VerifyStep(update, num_drafts))
        self.costs_ms["wall"].append((time.perf_counter() - started) * 1e3)
        self.costs_ms["thread"].append((time.thread_time() - spent) * 1e3)
        self.costs_ms["vllm"].append((answer.times.queue_ns + answer.times.forward_ns) * 1e-6)
        self._sequence.extend(answer.choices[:1])
        return answer

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(VOCAB_SIZE) for _ in range(count)]


async def measure(engine: VllmEngine, instant: Instant, length: int) -> dict[str, float]:
    async with VllmTarget(engine).open(Open("measure", length)) as session:
        rounds = Rounds(session, length)
        await rounds.play(0)
        rounds.costs_ms = {name: [] for name in rounds.costs_ms}
        rows = [(await rounds.play(DRAFT)).times.batch_tokens for _ in range(ROUNDS)]
        found = {name: statistics.median(values) for name, values in rounds.costs_ms.items()}
        instant.is_instant = True
        rounds.costs_ms = {name: [] for name in rounds.costs_ms}
        for _ in range(ROUNDS):
            await rounds.play(DRAFT)
        instant.is_instant = False
    adapter = statistics.median(rounds.costs_ms["wall"])
    return {
        "most_rows": max(rows),
        "adapter_ms": adapter,
        "thread_ms": found["thread"],
        "vllm_step_ms": found["vllm"],
        "round_ms": found["wall"],
    }


async def main() -> None:
    fields: dict[str, Any] = {"dtype": "float32", "max_sequences": 4}
    engine = await start_engine(VllmTargetConfig(model=sys.argv[1], **fields))
    try:
        instant = engine.client.wrap(Instant)
        assert engine.info.costs is not None
        costs = {"costs": asdict(engine.info.costs)}
        found = costs | {str(length): await measure(engine, instant, length) for length in LENGTHS}
    finally:
        await engine.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
