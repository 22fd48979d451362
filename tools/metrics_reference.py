"""`python -m tools.metrics_reference`: write docs/reference/metrics.md, the table of all metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric

from flyserve.core.messages import Load, ModelInfo, Role
from router.metrics import RouterMetrics
from router.replicas.acceptance import Acceptance
from services.common.telemetry.process import process_metrics
from services.drafter.servicer import DrafterMetrics
from services.engine.metrics import register_model
from services.lookup.engine import SuffixEngine
from services.lookup.index.budget import IndexBudget
from services.lookup.servicer import LookupMetrics
from services.target.servicer import TargetMetrics

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"

_INTRODUCTION = """# Metrics

Generated from the registries of all processes by `make metrics`; do not edit.

[telemetry.md](../telemetry.md) explains where they are served and how to read them.
"""


@dataclass(frozen=True, slots=True)
class Documented:
    """One metric as the table shows it.

    Attributes:
        name: As it is exposed, without the suffixes of a histogram.
        kind: counter, gauge, histogram or info.
        labels: Names of its labels, without `le` of a histogram.
        help: One sentence.
        samples: Names of the exposed samples.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    samples: frozenset[str]


def registries() -> Mapping[str, CollectorRegistry]:
    """Return one registry per role, and that of every process, filled by their owners."""
    every, _ = process_metrics("", "")
    router, target, drafter, lookup, sub_drafter = (CollectorRegistry() for _ in range(5))
    RouterMetrics(router, "", lambda: [("drafter-0", Acceptance())])
    TargetMetrics(target, Load)
    model = ModelInfo(Role.TARGET, "", "", "", "", 0, 0, "", 1, 0, "")
    for registry in (target, drafter):
        register_model(registry, model)
    level_gains = dict.fromkeys(("sub_drafter", "ahead"), lambda: 1.0)
    DrafterMetrics(drafter, Role.DRAFTER, Load, IndexBudget(), level_gains)
    engine, budget = SuffixEngine(0, IndexBudget()), IndexBudget()
    LookupMetrics(lookup, Role.DRAFTER, Load, engine, budget)
    LookupMetrics(sub_drafter, Role.SUB_DRAFTER, Load, engine, budget)
    return {
        "every process": every,
        "router": router,
        Role.TARGET.value: target,
        Role.DRAFTER.value: drafter,
        f"{Role.DRAFTER} that looks up": lookup,
        Role.SUB_DRAFTER.value: sub_drafter,
    }


def documented() -> dict[Documented, list[str]]:
    """Return every metric of this project, once, with the roles that expose it."""
    roles: dict[Documented, list[str]] = {}
    for role, registry in registries().items():
        for metric in _metrics(registry):
            roles.setdefault(metric, []).append(role)
    names = [metric.name for metric in roles]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{', '.join(sorted(twice))}: two roles declare it differently")
    return roles


def _metrics(registry: CollectorRegistry) -> Iterator[Documented]:
    for metric in registry.collect():
        if metric.name.startswith("flyserve_"):
            yield _documented(metric)


def _documented(metric: Metric) -> Documented:
    """Read a metric's labels from its samples: each owner exposes at least one from the start."""
    if not metric.samples:
        raise ValueError(f"{metric.name} has no sample before it is used, so its labels are unknown")
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    return Documented(
        name=metric.name + suffix,
        kind=metric.type,
        labels=tuple(label for label in metric.samples[0].labels if label != "le"),
        help=metric.documentation,
        samples=frozenset(sample.name for sample in metric.samples),
    )


def rendered() -> str:
    """Return the page: one line of a table per metric."""
    head = "| metric | kind | labels | exposed by | meaning |\n|---|---|---|---|---|\n"
    rows = "".join(f"{_row(metric, roles)}\n" for metric, roles in documented().items())
    return f"{_INTRODUCTION}\n{head}{rows}"


def _row(metric: Documented, roles: list[str]) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {', '.join(roles)} | {metric.help} |"


if __name__ == "__main__":
    OUTPUT.write_text(rendered(), encoding="utf-8")
