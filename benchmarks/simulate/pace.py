"""Whether a process kept pace with its dilated clock: how late it woke, and what it did meanwhile."""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

from prometheus_client import CollectorRegistry

from fly.clock import SystemClock
from fly.messages import Role

SAMPLE_S = 0.25
_PROBE_S = 0.02
_STEPS = "flyserve_step_seconds_sum"


class PacedClock(SystemClock):
    """A dilated clock that knows how late its sleepers woke.

    Attributes:
        asked_s: That was slept, on this clock.
        late_s: That the sleepers woke too late, added up.
    """

    def __init__(self, dilation: float) -> None:
        super().__init__(dilation)
        self.asked_s = 0.0
        self.late_s = 0.0

    async def sleep(self, seconds: float) -> None:
        started = self.now()
        await super().sleep(seconds)
        self.asked_s += seconds
        self.late_s += self.now() - started - seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """A process's counters at one moment; real seconds unless it is said otherwise.

    Attributes:
        at_s: On the machine's monotonic clock.
        cpu_s: CPU time of the process.
        asked_s: What its forwards were to take, in dilated time.
        late_s: What they took more, in dilated time.
        verify_s: Within targets, over all steps that were answered.
        draft_s: Within drafters.
        probes: Short sleeps of its event loop.
        lag_s: By which they took too long, added up.
    """

    at_s: float
    cpu_s: float
    asked_s: float
    late_s: float
    verify_s: float
    draft_s: float
    probes: float
    lag_s: float

    def __sub__(self, earlier: "Sample") -> "Sample":
        return Sample(*(getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)))

    def __add__(self, other: "Sample") -> "Sample":
        """Of two processes over one time."""
        sums = (getattr(self, each.name) + getattr(other, each.name) for each in fields(self)[1:])
        return Sample(self.at_s, *sums)


class Sampler:
    """Writes a sample of this process, line by line, while its block runs."""

    def __init__(self, file: Path, clock: PacedClock, registries: Iterable[CollectorRegistry]) -> None:
        """Adds up the steps of all registries."""
        self._file = file
        self._clock = clock
        self._registries = tuple(registries)
        self._probes = 0
        self._lag_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._run(), name="sampler")

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        with self._file.open("w", encoding="utf-8", buffering=1) as file:
            due = time.monotonic()
            while True:
                self._write(file)
                due += SAMPLE_S
                while (started := time.monotonic()) < due:
                    await asyncio.sleep(_PROBE_S)
                    self._probes += 1
                    self._lag_s += time.monotonic() - started - _PROBE_S

    def _write(self, file: IO[str]) -> None:
        clock = self._clock
        steps_s = (self._steps_s(Role.TARGET), self._steps_s(Role.DRAFTER))
        sample = Sample(
            time.monotonic(),
            time.process_time(),
            clock.asked_s,
            clock.late_s,
            *steps_s,
            self._probes,
            self._lag_s,
        )
        file.write(json.dumps(asdict(sample)) + "\n")

    def _steps_s(self, role: Role) -> float:
        values = (each.get_sample_value(_STEPS, {"role": role.value}) for each in self._registries)
        return sum(value for value in values if value is not None)


def read_samples(file: Path) -> list[Sample]:
    """What a sampler has written; a last line that is not whole is left out."""
    return list(_samples(file.read_text(encoding="utf-8")))


def between(samples: Sequence[Sample], begin_s: float, end_s: float) -> Sample:
    """What a process did from the sample after `begin_s` to the last one before `end_s`.

    Raises:
        ValueError: Fewer than two samples lie there.
    """
    inside = [sample for sample in samples if begin_s <= sample.at_s <= end_s]
    if len(inside) < 2:
        raise ValueError(f"{len(inside)} samples within {end_s - begin_s:.1f} s: the process did not run")
    return inside[-1] - inside[0]


def _samples(text: str) -> Iterator[Sample]:
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield Sample(**json.loads(line))
