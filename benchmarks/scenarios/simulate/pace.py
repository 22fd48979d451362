"""The pace of a process on its dilated clock: how late it woke, and what it did meanwhile."""

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
    """A dilated clock that measures how late its sleepers woke.

    Attributes:
        asked_s: Requested sleep, on this clock.
        late_s: Total delay with which the sleepers woke.
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
    """A process's counters at one moment, in real seconds unless stated otherwise.

    Attributes:
        at_s: Time on the machine's monotonic clock.
        cpu_s: CPU time of the process.
        asked_s: Cost of its forwards, in dilated time.
        late_s: Time that they took beyond their cost, in dilated time.
        verify_s: Time in targets, over all answered steps.
        draft_s: Time in drafters, over all answered steps.
        probes: Short sleeps of its event loop.
        lag_s: Total time that they took too long.
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
        """Return the activity since an earlier sample."""
        return Sample(*(getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)))

    def __add__(self, other: "Sample") -> "Sample":
        """Add the activity of two processes over the same time."""
        sums = (getattr(self, each.name) + getattr(other, each.name) for each in fields(self)[1:])
        return Sample(self.at_s, *sums)


class Sampler:
    """Writes samples of this process, line by line, while its block runs."""

    def __init__(self, file: Path, clock: PacedClock, registries: Iterable[CollectorRegistry]) -> None:
        """Use the sum over the steps of all registries."""
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
    """Return what a sampler has written, except for an incomplete last line."""
    return list(_samples(file.read_text(encoding="utf-8")))


def between(samples: Sequence[Sample], begin_s: float, end_s: float) -> Sample:
    """Return the activity from the first sample after `begin_s` to the last one before `end_s`.

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
