"""The documented metrics and the dashboard's queries agree with the registries of the code."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tools.metrics_reference import OUTPUT, Documented, documented, registries, rendered

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads(
    (ROOT / "helm" / "flyserve" / "dashboards" / "flyserve.json").read_text(encoding="utf-8")
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "helm/flyserve/alerts/flyserve.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
UNITS = ("_seconds", "_tokens", "_bytes", "_sequences", "_positions")
METRICS = {metric.name: metric for metric in documented()}
PROCESS = {"process_cpu_seconds_total": set[str]()}
"""Metrics that every process has from the library, as far as the dashboard shows them."""
ADDED = {"instance", "job", "le", "namespace", "flyserve_io_deployment"}
"""Labels that Prometheus and the chart's monitors add, or that belong to every histogram."""

LABELS = {sample: set(metric.labels) for metric in METRICS.values() for sample in metric.samples} | PROCESS


def test_the_page_has_the_metrics_of_today() -> None:
    assert rendered() == OUTPUT.read_text(encoding="utf-8"), "run `python -m tools.metrics_reference`"


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_names_follow_the_convention(metric: Documented) -> None:
    assert re.fullmatch("flyserve_[a-z][a-z_]*[a-z]", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.kind != "histogram" or metric.name.endswith(UNITS)
    assert metric.help.endswith(".") and "|" not in metric.help


def test_dashboard_and_alerts_ask_for_existing_metrics_by_existing_labels() -> None:
    for query in (*QUERIES, *(rule["expr"] for rule in ALERTS)):
        names = set(re.findall(r"\b(?:flyserve|process)_\w+", query)) - ADDED
        assert names and names <= LABELS.keys(), f"{names - LABELS.keys()} in {query}"
        known = ADDED.union(*(LABELS[name] for name in names))
        assert labels_of(query) <= known, f"{labels_of(query) - known} in {query}"


def test_every_alert_says_what_to_do() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(FlyServe\w+)` \| .{40,} \|$", page, re.MULTILINE)
    assert rows == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["annotations"]["summary"].endswith(".") and rule["labels"]["severity"] and rule["for"]


def labels_of(query: str) -> set[str]:
    """By which it selects, groups or joins."""
    grouped = re.findall(r"(?:by|on|ignoring|group_left) \(([^)]*)\)", query)
    selected = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", query)
    return {label.strip() for group in grouped for label in group.split(",")} | set(selected)


def test_every_metric_is_on_the_dashboard() -> None:
    queries = " ".join(QUERIES)
    used = {metric.name for metric in METRICS.values() if any(name in queries for name in metric.samples)}
    missing = METRICS.keys() - used
    assert not missing | {name for name in PROCESS if name not in queries}


def test_the_dashboard_is_sound() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Traffic", "Speculation", "Latency", "Engine", "Drafters and processes"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    for query in QUERIES:
        assert all(query.count(one) == query.count(other) for one, other in ("()", "{}", "[]"))


def test_every_query_of_the_dashboard_keeps_to_the_chosen_namespace_and_deployment() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "namespace", "deployment"}
    for name in ("namespace", "deployment"):
        # All of them, and also metrics without the label: outside Kubernetes there is none.
        assert (variables[name]["allValue"], variables[name]["current"]["value"]) == (".*", "$__all")
    chosen = 'namespace=~"$namespace", flyserve_io_deployment=~"$deployment"'
    for query in QUERIES:
        assert len(re.findall(r"\b(?:flyserve|process)_[a-z_]+\{", query)) == query.count(chosen) > 0, query
        assert not re.search(r"\b(?:flyserve|process)_(?!io_deployment)[a-z_]+[^a-z_{]", query), query


def test_every_alert_keeps_to_its_own_release() -> None:
    chosen = 'namespace="NAMESPACE", flyserve_io_deployment="DEPLOYMENT"'
    for query in (rule["expr"] for rule in ALERTS):
        assert len(re.findall(r"\bflyserve_[a-z_]+\{", query)) == query.count(chosen) > 0, query


@pytest.mark.parametrize("role", registries())
def test_the_exposition_can_be_parsed_and_agrees_with_the_table(role: str) -> None:
    for family in text_string_to_metric_families(generate_latest(registries()[role]).decode()):
        if family.name.startswith("flyserve_"):
            metric = METRICS[family.name + "_total" if family.type == "counter" else family.name]
            assert family.documentation == metric.help
            # The text format has no kind of its own for the information about the process.
            assert family.type == ("gauge" if metric.kind == "info" else metric.kind)
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == LABELS[sample.name]


@pytest.mark.parametrize("role", registries())
def test_the_buckets_of_every_histogram_rise(role: str) -> None:
    bounds: dict[str, list[float]] = {}
    for metric in registries()[role].collect():
        for sample in metric.samples:
            if sample.name.endswith("_bucket"):
                series = str({**sample.labels, "le": sample.name})
                bounds.setdefault(series, []).append(float(sample.labels["le"]))
    assert bounds or role == "every process"
    assert all(series == sorted(set(series)) for series in bounds.values())
