"""Clients of every kind: those who wait, leave, stall or err, and those who are gone without a word."""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum

from benchmarks.soak.over_http import complete
from benchmarks.soak.plan import Plan
from benchmarks.soak.questions import BAD, Question, Questions, long_winded
from fly.errors import DeadlineExceeded, FlyServeError, InvalidRequest
from flyserve import AsyncClient, Response
from flyserve.async_client import AsyncStream

_REQUESTS_OF_A_CLIENT = 20
"""After which it connects again."""
_KEPT_FAULTS = 20


class Outcome(StrEnum):
    """What became of a request."""

    DONE = "done"
    LEFT = "left"
    LATE = "late"
    REFUSED = "rejected"
    WRONG = "wrong"
    FAILED = "failed"


class Crowd:
    """Many clients at once.

    Attributes:
        outcomes: Requests by what the client did and what became of them.
        faults: The first things that should not have happened.
    """

    def __init__(self, addresses: Sequence[str], plan: Plan) -> None:
        self.outcomes: Counter[tuple[str, Outcome]] = Counter()
        self.faults: list[str] = []
        self._address, self._url = addresses
        self._plan = plan
        self._questions = Questions(plan.seed)
        self._known: dict[str, tuple[int, ...]] = {}

    async def ask_for(self, seconds: float) -> None:
        """Asks until the time is over; returns when the last request has ended."""
        end_s = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.clients):
                group.create_task(self._client(end_s))
            group.create_task(self._vanish_now_and_then(end_s))

    def told(self) -> dict[str, dict[str, int]]:
        """The outcomes, by manner and then by what became of it."""
        found: dict[str, dict[str, int]] = {}
        for (manner, outcome), number in sorted(self.outcomes.items()):
            found.setdefault(manner, {})[outcome.value] = number
        return found

    async def _client(self, end_s: float) -> None:
        while time.monotonic() < end_s:
            async with AsyncClient(self._address) as client:
                for _ in range(_REQUESTS_OF_A_CLIENT):
                    if time.monotonic() >= end_s:
                        break
                    await self._ask(client)
                    await asyncio.sleep(self._questions.uniform(0.0, self._plan.think_s))

    async def _ask(self, client: AsyncClient) -> None:
        question, manner = self._questions.draw(), self._questions.choose(_MANNERS)
        name = f"{manner}, {question.kind}" if question.kind == BAD else manner
        try:
            outcome = await _ACTS[manner](self, client, question)
        except InvalidRequest as rejection:
            outcome = Outcome.REFUSED if question.kind == BAD else self._fault(Outcome.FAILED, rejection)
        except DeadlineExceeded as late:
            outcome = Outcome.LATE if manner == "hurries" else self._fault(Outcome.FAILED, late)
        except (FlyServeError, OSError) as error:
            outcome = self._fault(Outcome.FAILED, error)
        self.outcomes[name, outcome] += 1

    async def _wait(self, client: AsyncClient, question: Question) -> Outcome:
        return self._judge(
            question,
            await client.generate(
                question.prompt,
                question.max_new_tokens,
                question.sampling,
                question.speculation,
                **question.options,
            ),
        )

    async def _read(self, client: AsyncClient, question: Question) -> Outcome:
        return await self._read_slowly(client, question, 0.0)

    async def _dawdle(self, client: AsyncClient, question: Question) -> Outcome:
        return await self._read_slowly(client, question, self._questions.uniform(0.5, 8.0))

    async def _read_slowly(self, client: AsyncClient, question: Question, rest_s: float) -> Outcome:
        """Rests for so long in all, a tenth of it after every chunk."""
        stream, pause_s = _stream(client, question), rest_s / 10
        async for _ in stream:
            if rest_s > 0:
                await asyncio.sleep(pause_s)
                rest_s -= pause_s
        return self._judge(question, stream.response)

    async def _leave(self, client: AsyncClient, question: Question) -> Outcome:
        """After some chunks, or before the first."""
        left = int(self._questions.uniform(0, 12))
        async with contextlib.aclosing(_stream(client, question)) as stream:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._questions.uniform(0.01, 2.0)):
                    async for _ in stream:
                        left -= 1
                        if left <= 0:
                            return Outcome.LEFT
                    return self._judge(question, stream.response)
        return Outcome.LEFT

    async def _hurry(self, client: AsyncClient, question: Question) -> Outcome:
        stream = _stream(client, question, self._questions.uniform(0.02, 1.0))
        async for _ in stream:
            pass
        return self._judge(question, stream.response)

    async def _stall(self, client: AsyncClient, question: Question) -> Outcome:
        """Takes nothing for longer than the router is patient."""
        async with contextlib.aclosing(_stream(client, long_winded())) as stream:
            await anext(stream)
            await asyncio.sleep(2.0 * self._plan.write_timeout_s)
        return Outcome.LEFT

    async def _browse(self, client: AsyncClient, question: Question) -> Outcome:
        """Over HTTP; every other one hangs up in the middle."""
        stays = self._questions.uniform(0.0, 1.0) < 0.5
        is_whole = await complete(self._url, question, None if stays else 3)
        return Outcome.DONE if is_whole else Outcome.LEFT

    async def _vanish_now_and_then(self, end_s: float) -> None:
        """A process with open streams is killed: its connection ends without a word from it."""
        while time.monotonic() + self._plan.vanish_s < end_s:
            command = (sys.executable, "-m", "benchmarks.soak.vanishing", self._address)
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            assert process.stdout is not None
            has_opened = await process.stdout.readline() == b"open\n"
            process.kill()
            await process.wait()
            if not has_opened:
                self._fault(Outcome.FAILED, FlyServeError("no streams to vanish from"))
            self.outcomes["vanishes", Outcome.LEFT if has_opened else Outcome.FAILED] += 1
            await asyncio.sleep(self._plan.vanish_s)

    def _judge(self, question: Question, response: Response) -> Outcome:
        """An answer is as far as it goes what every other one to its topic is."""
        if question.kind == BAD:
            return self._fault(Outcome.WRONG, FlyServeError(f"{question.options} is answered"))
        if question.topic is None:
            return Outcome.DONE
        ids = tuple(token.id for token in response.tokens)
        known = self._known.get(question.topic, ())
        shorter = min(len(ids), len(known))
        if ids[:shorter] != known[:shorter]:
            return self._fault(Outcome.WRONG, FlyServeError(f"{question.topic} has two answers"))
        if len(ids) > len(known):
            self._known[question.topic] = ids
        return Outcome.DONE

    def _fault(self, outcome: Outcome, error: Exception) -> Outcome:
        if len(self.faults) < _KEPT_FAULTS:
            self.faults.append(f"{type(error).__name__}: {error}")
        return outcome


def _stream(client: AsyncClient, question: Question, timeout_s: float | None = None) -> AsyncStream:
    return client.stream(
        question.prompt,
        question.max_new_tokens,
        question.sampling,
        question.speculation,
        timeout_s=timeout_s,
        **question.options,
    )


_Act = Callable[[Crowd, AsyncClient, Question], Awaitable[Outcome]]
_ACTS: Mapping[str, _Act] = {
    "reads": Crowd._read,
    "waits for all": Crowd._wait,
    "leaves": Crowd._leave,
    "hurries": Crowd._hurry,
    "dawdles": Crowd._dawdle,
    "stalls": Crowd._stall,
    "browses": Crowd._browse,
}
_MANNERS: Mapping[str, int] = {
    "reads": 40,
    "waits for all": 15,
    "leaves": 20,
    "hurries": 8,
    "dawdles": 5,
    "stalls": 2,
    "browses": 10,
}
"""How often a client does each."""
