"""The report of a measurement on a GPU, or of its trial on a CPU. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import geometric_mean, mean
from typing import Any, NamedTuple

from benchmarks.harness.machine import Machine
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Table, make_rows
from benchmarks.harness.statistics import median_ratio, spread
from benchmarks.scenarios.gpu.plan import GPU, Case, Plan
from benchmarks.scenarios.gpu.results import (
    AttentionCost,
    Exactness,
    ForwardTime,
    ForwardTimes,
    KernelTime,
    KernelTimes,
    Limits,
    Probe,
    Served,
    Turn,
)
from benchmarks.scenarios.gpu.serve import PLAIN_NAME
from services.engine.config import Dtype

NO_KERNELS = "Triton compiles for GPUs only"
KERNELS_GAIN = 1.2
"""Kernels stay if they are this many times as fast as torch; the geometric mean over models and cases."""
NO_TIME = "the time for serving was over ({limit:g} s, `serve_s`)"


@dataclass(frozen=True)
class Found:
    """The results of one run; a part that was not chosen or failed has none.

    Attributes:
        chosen: Names of the parts that were chosen.
        failures: Reasons of the parts that failed, by name.
    """

    limits: Limits | None = None
    probe: Probe | None = None
    exact: Sequence[Exactness] | None = None
    forward: Sequence[ForwardTimes] | None = None
    kernels: Sequence[KernelTimes] | None = None
    serve: Sequence[Served] | None = None
    chosen: tuple[str, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)


class _Forward(NamedTuple):
    """One case of one model; the limit is None if it was not measured."""

    model: str
    time: ForwardTime
    limit_s: float | None


class _Kernel(NamedTuple):
    model: str
    time: KernelTime

    @property
    def gain(self) -> float:
        return self.time.torch_s / self.time.kernels_s


class _Way(NamedTuple):
    """One way of decoding with a number of streams, and plain decoding beside it."""

    streams: int
    name: str
    turns: Sequence[Turn]
    plain: Sequence[Turn]


def make_report(machine: Machine, plan: Plan, found: Found) -> Report:
    """Return the report; only one of a GPU is published."""
    is_gpu = plan.device == GPU
    report = Report("gpu", machine, plan, **vars(found))
    report.is_published = is_gpu
    report.faults += [f"gpu: {name} failed: {reason}" for name, reason in found.failures.items()]
    report.faults += [
        f"gpu: {each.forward}: differs from transformers in {each.dtype}"
        for each in found.exact or ()
        if each.dtype == Dtype.FLOAT32 and not each.is_equal
    ]
    limits, kernels = (
        found.limits,
        [_Kernel(each.model, time) for each in found.kernels or () for time in each.times],
    )
    return report.fill(
        is_gpu=is_gpu,
        gpu=found.probe.gpu if found.probe else None,
        sizes=plan.pair.sizes,
        not_measured=list(not_measured(plan, found)),
        rates=_rates(limits) if limits else None,
        linears=_linears(limits) if limits else None,
        attention=_table("Attention", _ATTENTION, found.probe.attention if found.probe else ()),
        exactness=_table("Exactness", _EXACT, found.exact or ()),
        forwards=_table("Forwards", _FORWARD, list(_forwards(found))),
        kernels=_table("Kernels", _KERNEL, kernels),
        kernels_gain=geometric_mean(each.gain for each in kernels) if kernels else None,
        wanted_gain=KERNELS_GAIN,
        serving=_table("Serving", _SERVED, list(_ways(found))),
        results=found,
    )


def not_measured(plan: Plan, found: Found) -> Iterator[tuple[str, str]]:
    """Yield what the report lacks, each with the reason."""
    yield from found.failures.items()
    if plan.device != GPU and "kernels" in found.chosen:
        yield "the kernels", NO_KERNELS
    if plan.device != GPU and "probe" in found.chosen:
        yield "attention by cuDNN", "it runs on a GPU only"
    if found.serve is not None:
        served = {each.streams for each in found.serve}
        for streams in plan.streams:
            if streams not in served:
                yield f"serving {streams} streams", NO_TIME.format(limit=plan.serve_s)


def _table(title: str, figures: Sequence[Figure[Any]], items: Sequence[Any]) -> Table:
    return Table.of(title, figures, make_rows(figures, items))


def _rates(limits: Limits) -> Table:
    rows = (
        ("reading weights, matrix-vector product", f"{limits.read_bytes_per_s / 1e9:,.0f} GB/s"),
        ("copying, read and written", f"{limits.copy_bytes_per_s / 1e9:,.0f} GB/s"),
        ("multiplying large bfloat16 matrices", f"{limits.flops / 1e12:,.1f} TFLOPS"),
        ("starting a small operator, host", f"{1e6 * limits.operator_s:.1f} us"),
    )
    return Table("Limits", ("of the device", "measured"), rows)


def _linears(limits: Limits) -> Table:
    rates = limits.linear_bytes_per_s.items()
    rows = tuple(
        (str(rows), f"{rate / 1e9:,.0f}", f"{rate / limits.bytes_per_s:.0%}") for rows, rate in rates
    )
    return Table("Linear layers", ("rows", "GB/s of weights", "of the better rate"), rows)


def _forwards(found: Found) -> Iterator[_Forward]:
    for each in found.forward or ():
        for time in each.times:
            yield _Forward(each.model, time, _limit_s(found, each.weight_bytes, time))


def _limit_s(found: Found, weight_bytes: int, time: ForwardTime) -> float | None:
    if found.limits is None:
        return None
    case = Case(*time.case)
    return found.limits.forward_s(weight_bytes, time.kv_bytes, case.sequences * case.rows)


def _ways(found: Found) -> Iterator[_Way]:
    for each in found.serve or ():
        for name, turns in each.turns.items():
            yield _Way(each.streams, name, turns, each.turns[PLAIN_NAME])


def _equal(way: _Way) -> float:
    """Return the share of responses that are those of plain decoding."""
    turns = zip(way.turns, way.plain, strict=True)
    pairs = (zip(turn.tokens, plain.tokens, strict=True) for turn, plain in turns)
    return mean(own == other for own, other in chain.from_iterable(pairs))


def _mean_ms(figure: Callable[[Turn], float]) -> Callable[[_Way], float | None]:
    return lambda way: 1e3 * mean(map(figure, way.turns)) or None


def _of_limit(limit_s: float | None, seconds: float | None) -> float | None:
    return limit_s / seconds if limit_s is not None and seconds else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


_MS = "{:.2f}"
_CASE: tuple[Figure[Any], ...] = (
    Figure("model", lambda f: f.model, {"model": "{}"}),
    Figure("context", lambda f: Case(*f.time.case).context, {"context": "{}"}),
    Figure("sequences", lambda f: Case(*f.time.case).sequences, {"sequences": "{}"}),
    Figure("rows", lambda f: Case(*f.time.case).rows, {"rows": "{}"}),
    Figure("limit_ms", lambda f: _ms(f.limit_s), {"limit, ms": _MS}),
)
_FORWARD: tuple[Figure[Any], ...] = (
    *_CASE,
    Figure("forward_ms", lambda f: _ms(f.time.forward_s), {"forward, ms": _MS}),
    Figure("of_limit", lambda f: _of_limit(f.limit_s, f.time.forward_s), {"limit by forward": "{:.0%}"}),
    Figure("start_ms", lambda f: _ms(f.time.start_s), {"host, ms": _MS}),
    Figure("head_ms", lambda f: _ms(f.time.head_s), {"head, ms": _MS}),
)
_KERNEL: tuple[Figure[_Kernel], ...] = (
    Figure("model", lambda k: k.model, {"model": "{}"}),
    Figure("context", lambda k: Case(*k.time.case).context, {"context": "{}"}),
    Figure("sequences", lambda k: Case(*k.time.case).sequences, {"sequences": "{}"}),
    Figure("rows", lambda k: Case(*k.time.case).rows, {"rows": "{}"}),
    Figure("torch_ms", lambda k: _ms(k.time.torch_s), {"torch, ms": _MS}),
    Figure("kernels_ms", lambda k: _ms(k.time.kernels_s), {"kernels, ms": _MS}),
    Figure("gain", lambda k: k.gain, {"kernels by torch": "{:.2f}x"}),
)
_ATTENTION: tuple[Figure[AttentionCost], ...] = (
    Figure("rows", lambda a: a.rows, {"rows": "{}"}),
    Figure("cudnn", lambda a: a.cudnn, {"cuDNN": lambda allowed: "allowed" if allowed else "off"}),
    Figure("new_ms", lambda a: _ms(a.new_length_s), {"at a new length, ms": "{:.3f}"}),
    Figure("same_ms", lambda a: _ms(a.same_length_s), {"at a known length, ms": "{:.3f}"}),
)
_EXACT: tuple[Figure[Exactness], ...] = (
    Figure("forward", lambda e: e.forward, {"forward": "{}"}),
    Figure("dtype", lambda e: e.dtype, {"type": "{}"}),
    Figure("equal", lambda e: f"{e.equal} of {e.prompts}", {"responses as by transformers": "{}"}),
    Figure("batched", lambda e: e.batched_equal, {"batched as alone": lambda same: "yes" if same else "no"}),
    Figure("verified", lambda e: e.verified_equal, {"16 rows as one": "{:.1%}"}),
)
_SERVED: tuple[Figure[_Way], ...] = (
    Figure("streams", lambda w: w.streams, {"streams": "{}"}),
    Figure("name", lambda w: w.name, {"way": "{}"}),
    Figure("tokens_per_s", lambda w: spread([t.tokens_per_s for t in w.turns]), {"tokens/s": "{.value:.1f}"}),
    Figure(
        "by_plain",
        lambda w: median_ratio([t.tokens_per_s for t in w.turns], [t.tokens_per_s for t in w.plain]),
        {"by plain": TIMES, "95% interval": AROUND},
    ),
    Figure("tau", lambda w: mean(t.tau for t in w.turns) or None, {"tau": "{:.2f}"}),
    Figure("equal", _equal, {"responses as plain": "{:.0%}"}),
    Figure("verify_ms", _mean_ms(lambda t: t.verify_s), {"verification, ms": _MS}),
    Figure("draft_ms", _mean_ms(lambda t: t.draft_s), {"drafter's forward, ms": _MS}),
    Figure("wire_ms", _mean_ms(lambda t: t.wire_s), {"wire and queues, ms": _MS}),
)
