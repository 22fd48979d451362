"""The documented metrics and the dashboard's queries are those that the code has."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fly.messages import Load
from services.common.telemetry.metrics.catalogue import Told, catalogue
from services.common.telemetry.metrics.engine import target_observer
from services.common.telemetry.metrics.router import router_observer
from tools.metrics_reference import PAGE, with_table

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads(
    (ROOT / "helm" / "flyserve" / "dashboards" / "flyserve.json").read_text(encoding="utf-8")
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
UNITS = ("_seconds", "_tokens", "_bytes", "_sequences", "_positions")
OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
TOLD = {told.family.name: told for told in catalogue()}
OF_EVERY_PROCESS = {
    "process_cpu_seconds_total": set[str](),
    "flyserve_event_loop_tasks": set[str](),
    "flyserve_build_info": {"role", "replica", "version"},
}
ADDED = {"instance", "job", "le"}
"""Labels that Prometheus adds, or that belong to every histogram."""


def samples(told: Told) -> set[str]:
    name = told.family.name
    return {name + suffix for suffix in OF_HISTOGRAMS} if told.family.kind == "histogram" else {name}


LABELS = {sample: set(told.family.labels) for told in TOLD.values() for sample in samples(told)}
LABELS |= OF_EVERY_PROCESS


def test_the_page_has_the_metrics_of_today() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run `python -m tools.metrics_reference`"


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
def test_names_follow_the_convention(told: Told) -> None:
    family = told.family
    assert re.fullmatch("flyserve_[a-z][a-z_]*[a-z]", family.name)
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert family.kind != "histogram" or family.name.endswith(UNITS)
    assert family.help.endswith(".") and "|" not in family.help
    assert list(family.buckets) == sorted(set(family.buckets))


def test_the_dashboard_asks_for_existing_metrics_by_existing_labels() -> None:
    for query in QUERIES:
        names = set(re.findall(r"\b(?:flyserve|process)_\w+", query))
        assert names and names <= LABELS.keys(), f"{names - LABELS.keys()} in {query}"
        known = ADDED.union(*(LABELS[name] for name in names))
        assert labels_of(query) <= known, f"{labels_of(query) - known} in {query}"


def labels_of(query: str) -> set[str]:
    """By which it selects, groups or joins."""
    grouped = re.findall(r"(?:by|on|ignoring|group_left) \(([^)]*)\)", query)
    selected = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", query)
    return {label.strip() for group in grouped for label in group.split(",")} | set(selected)


def test_every_metric_is_on_the_dashboard() -> None:
    asked = " ".join(QUERIES)
    forgotten = {name for name, told in TOLD.items() if not any(sample in asked for sample in samples(told))}
    assert not forgotten | {name for name in OF_EVERY_PROCESS if name not in asked}


def test_the_dashboard_is_sound() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Traffic", "Speculation", "Latency", "Engine", "Helpers"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    for query in QUERIES:
        assert all(query.count(one) == query.count(other) for one, other in ("()", "{}", "[]"))


@pytest.mark.parametrize("fill", [router_observer, lambda registry: target_observer(registry, Load)])
def test_what_is_exposed_is_read_by_the_parser(fill: Any) -> None:
    registry = CollectorRegistry()
    fill(registry)
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        name = family.name + "_total" if family.type == "counter" else family.name
        assert TOLD[name].family.kind == family.type and family.documentation == TOLD[name].family.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == LABELS[sample.name]
