"""The report of a measurement on a GPU, or of its trial on a CPU. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.load import Window
from benchmarks.harness.machine import Machine
from benchmarks.harness.report import Figure, Report, Table, make_rows
from benchmarks.harness.windows import SHOWN, level_tables, summarize
from benchmarks.scenarios.gpu.plan import GPU, Plan
from benchmarks.scenarios.gpu.results import Device, Exactness, ForwardTime
from benchmarks.scenarios.gpu.serve import BASELINE
from services.engine.config import Dtype

NO_TIME = "the time for serving was over ({limit:g} s, `serve_s`)"


@dataclass(frozen=True)
class Found:
    """The results of one run; a part that was not chosen or failed has none.

    Attributes:
        failures: Reasons of the parts that failed, by name.
    """

    device: Device | None = None
    exact: Sequence[Exactness] | None = None
    forward: Sequence[ForwardTime] | None = None
    serve: Sequence[Window] | None = None
    failures: dict[str, str] = field(default_factory=dict)


def make_report(machine: Machine, plan: Plan, found: Found) -> Report:
    """Return the report; only one of a GPU is published."""
    report = Report("gpu", machine, plan, **vars(found))
    report.is_published = plan.device == GPU
    report.faults += [f"gpu: {name} failed: {reason}" for name, reason in found.failures.items()]
    report.faults += [
        f"gpu: {each.forward}: differs from transformers in {each.dtype}"
        for each in found.exact or ()
        if each.dtype == Dtype.FLOAT32 and not each.is_equal
    ]
    forwards = [(each, found.device) for each in found.forward or ()]
    return report.fill(
        is_gpu=plan.device == GPU,
        sizes=plan.pair.sizes,
        not_measured=list(not_measured(plan, found)),
        exactness=_table("Exactness", _EXACT, found.exact or ()),
        forwards=_table("Forwards", _FORWARD, forwards),
        serving=level_tables(summarize(found.serve or (), lambda _: BASELINE)),
        shown=SHOWN,
        results=found,
    )


def not_measured(plan: Plan, found: Found) -> Iterator[tuple[str, str]]:
    """Yield what the report lacks, each with the reason."""
    yield from found.failures.items()
    if found.serve is not None:
        served = {each.concurrency for each in found.serve}
        for streams in plan.streams:
            if streams not in served:
                yield f"serving {streams} streams", NO_TIME.format(limit=plan.serve_s)


def _table(title: str, figures: Sequence[Figure[Any]], items: Sequence[Any]) -> Table:
    return Table.of(title, figures, make_rows(figures, items))


_Forward = tuple[ForwardTime, Device | None]
"""One case of one model; without a device, its limit is unknown."""


def _limit_s(forward: _Forward) -> float | None:
    time, device = forward
    if device is None:
        return None
    return device.forward_s(time.weight_bytes, time.kv_bytes, time.case.sequences * time.case.rows)


def _of_limit(forward: _Forward) -> float | None:
    limit_s = _limit_s(forward)
    return limit_s / forward[0].torch_s if limit_s else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


_MS = "{:.2f}"
_FORWARD: tuple[Figure[_Forward], ...] = (
    Figure("model", lambda f: f[0].model, {"model": "{}"}),
    Figure("context", lambda f: f[0].case.context, {"context": "{}"}),
    Figure("sequences", lambda f: f[0].case.sequences, {"sequences": "{}"}),
    Figure("rows", lambda f: f[0].case.rows, {"rows": "{}"}),
    Figure("limit_ms", lambda f: _ms(_limit_s(f)), {"limit, ms": _MS}),
    Figure("torch_ms", lambda f: _ms(f[0].torch_s), {"torch, ms": _MS}),
    Figure("of_limit", _of_limit, {"limit by torch": "{:.0%}"}),
    Figure("start_ms", lambda f: _ms(f[0].start_s), {"host, ms": _MS}),
)
_EXACT: tuple[Figure[Exactness], ...] = (
    Figure("forward", lambda e: e.forward, {"forward": "{}"}),
    Figure("dtype", lambda e: e.dtype, {"type": "{}"}),
    Figure("equal", lambda e: f"{e.equal} of {e.prompts}", {"responses as by transformers": "{}"}),
    Figure("batched", lambda e: e.batched_equal, {"batched as alone": lambda same: "yes" if same else "no"}),
    Figure("verified", lambda e: e.verified_equal, {"16 rows as one": "{:.1%}"}),
)
