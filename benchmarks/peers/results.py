"""Everything that one run found."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.machine import Machine
from benchmarks.peers.figures import EngineFigures, SettingFigures, StreamsFigures
from benchmarks.peers.plan import Plan


@dataclass(frozen=True, slots=True)
class PairResult:
    """One pair's figures.

    Attributes:
        note: What the pair is.
        computes: How the engine computes each model.
        weight_bytes: That the target reads per token of plain decoding.
        limit_bytes_per_s: At which this machine reads weights, the best of two measurements.
        alone: One request at a time.
        streams: Several at once.
        runs: Every single measurement, as plain data.
    """

    name: str
    note: str
    computes: Mapping[str, str]
    weight_bytes: int
    limit_bytes_per_s: float
    alone: tuple[SettingFigures, ...]
    streams: tuple[StreamsFigures, ...]
    runs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """What the report is made of."""

    machine: Machine
    plan: Plan
    pairs: tuple[PairResult, ...] = ()
    engine: tuple[EngineFigures, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)
