"""Requests as they come: by clients that wait for their answers, or whether or not anybody answers."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import grpc

from benchmarks.overload.plan import Plan
from protos.flyserve.v1 import generation_pb2 as pb
from protos.flyserve.v1.generation_pb2_grpc import GenerationStub


class Outcome(StrEnum):
    """What became of a request."""

    DONE = "done"
    REFUSED = "rejected"
    LATE = "late"
    FAILED = "failed"


_OUTCOMES = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Outcome.REFUSED,
    grpc.StatusCode.DEADLINE_EXCEEDED: Outcome.LATE,
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request.

    Attributes:
        ended_s: On the monotonic clock.
        seconds: That it took.
    """

    outcome: Outcome
    ended_s: float
    seconds: float


class Asker:
    """Sends requests of a plan over one connection.

    Attributes:
        attempts: What became of them, in the order in which they ended.
    """

    def __init__(self, channel: grpc.aio.Channel, plan: Plan) -> None:
        self.attempts: list[Attempt] = []
        self._stub = GenerationStub(channel)
        self._plan = plan
        self._numbers = itertools.count()

    async def ask(self, timeout_s: float | None = None) -> Attempt:
        """One request, each with a prompt of its own."""
        started, outcome = time.monotonic(), Outcome.DONE
        try:
            await self._stub.Generate(self._request(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            outcome = _OUTCOMES.get(error.code(), Outcome.FAILED)
        ended = time.monotonic()
        self.attempts.append(Attempt(outcome, ended, ended - started))
        return self.attempts[-1]

    async def ask_by_turns(self, clients: int, seconds: float) -> None:
        """Clients that ask again as soon as they are answered."""
        end = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < end:
                await self.ask()

        await asyncio.gather(*(client() for _ in range(clients)))

    async def ask_regardless(self, per_second: float, seconds: float) -> None:
        """So many requests a second, evenly, each with the plan's deadline; returns when all have ended."""
        async with asyncio.TaskGroup() as group:
            for due in _times(per_second, seconds):
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                group.create_task(self.ask(self._plan.deadline_s))

    def _request(self) -> pb.GenerateRequest:
        number = next(self._numbers)
        return pb.GenerateRequest(
            prompt_token_ids=pb.TokenIds(ids=[16 + number % 4000, 16 + number // 4000, 20, 21]),
            max_new_tokens=self._plan.new_tokens,
            speculation=pb.SpeculationParams(mode=pb.MODE_PLAIN),
        )


def _times(per_second: float, seconds: float) -> Iterator[float]:
    started = time.monotonic()
    yield from (started + number / per_second for number in range(int(per_second * seconds)))
