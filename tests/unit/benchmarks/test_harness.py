import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from jinja2 import DictLoader

from benchmarks.harness import command
from benchmarks.harness import report as report_module
from benchmarks.harness.command import SCENARIOS, BasePlan, Context, check_parts, load_scenario, make_plan
from benchmarks.harness.machine import this_machine
from benchmarks.harness.plot import bar_chart, line_chart
from benchmarks.harness.report import Report
from benchmarks.harness.statistics import Goal, Spread
from flyserve.bench.statistics import Interval
from flyserve.core.errors import ConfigError


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (Interval(1.2, 1.16, 1.3), "met"),
        (Interval(1.2, 1.1, 1.3), "met, within the noise"),
        (Interval(1.1, 1.0, 1.2), "missed, within the noise"),
        (Interval(1.1, 1.0, 1.14), "missed"),
        (Spread(1.2, 1.16, 1.3), "met"),
        (Spread(1.2, 1.1, 1.3), "met, not by every prompt"),
        (Spread(1.1, 1.0, 1.2), "missed, by some prompts met"),
    ],
)
def test_a_goal_is_met_or_missed_and_may_be_within_the_noise(
    measured: Interval | Spread, verdict: str
) -> None:
    goal = Goal("speed", 1.15, measured)
    assert goal.verdict == verdict and goal.is_met == verdict.startswith("met")


def test_a_goal_may_be_an_upper_limit() -> None:
    half = Goal("forwards", 0.5, Interval(0.4, 0.3, 0.49), is_least=False)
    assert half.verdict == "met"
    assert (
        Goal("forwards", 0.5, Interval(0.6, 0.4, 0.7), is_least=False).verdict == "missed, within the noise"
    )
    report = Report("any")
    assert "| forwards | <= 0.50x | 0.40x | 0.30 to 0.49 | met |" in report.goals([half])
    few = report.goals([Goal("drafts", 2.0, Spread(2.1, 1.9, 2.5))])
    assert "95%" not in few and "| least to most |" in few and "| 2.10x | 1.90 to 2.50 | met," in few


def test_a_chart_is_well_formed_names_its_lines_and_is_the_same_every_time() -> None:
    lines = {"one": [(1, 2.0), (4, 2.5)], "two": [(1, 2.0)], "none": []}
    chart = line_chart("a < b", "x", "y", lines)
    root = ElementTree.fromstring(chart)
    assert root.tag.endswith("svg") and "a &lt; b" in chart
    assert all(f">{name}</text>" in chart for name in ("one", "two"))
    assert chart == line_chart("a < b", "x", "y", lines)
    flat = line_chart("flat", "x", "y", {"one": [(1, 0.0), (2, 0.0)]})
    assert "nan" not in flat and "inf" not in flat
    bars = bar_chart("t", "tokens/s", {"a": Interval(2.0, 1.0, 3.0), "b": Interval(2.5, 2.0, 3.0), "c": 4.0})
    assert all(f">{text}</text>" in bars for text in ("a", "b", "c", "2.5", "4", "t, tokens/s"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_a_plan_that_a_quick_run_shortens(name: str) -> None:
    scenario = load_scenario(name)
    assert callable(scenario.run) and scenario.__doc__
    assert make_plan(name, scenario.Plan, True, ()) != make_plan(name, scenario.Plan, False, ())


def test_the_command_line_sets_keys_of_the_plan() -> None:
    kind = load_scenario("capacity").Plan
    plan = make_plan("capacity", kind, False, ["dilations=[30, 70]", "sizes=[1, 8]"])
    assert (plan.dilations, plan.sizes) == ((30.0, 70.0), (1, 8))
    load = make_plan("load", load_scenario("load").Plan, False, ["levels.repeat=2", "overload.places=8"])
    assert (load.levels.repeat, load.overload.places) == (2, 8)
    with pytest.raises(ConfigError, match="capacity has no such key; its keys are shards"):
        make_plan("capacity", kind, False, ["speed=2"])
    with pytest.raises(ConfigError, match="--set shards: is '1', must be at least 2"):
        make_plan("capacity", kind, False, ["shards=1"])
    with pytest.raises(ConfigError, match="soak has no such key"):
        make_plan("soak", load_scenario("soak").Plan, False, ["repeat=2"])
    for given in ("shards=2026-02-30", "shards=" + "[" * 3000, "shards=" + "9" * 5000):
        with pytest.raises(ConfigError, match=r"--set shards: .* is no value: "):
            make_plan("capacity", kind, False, [given])
    real = load_scenario("real").Plan
    faulty = "prompts={chat: 1, code: 1, agents: 1, reasoning: 0}"
    for given in ("prompts={}", faulty, "repeat.x=7", "repeat.=7"):
        with pytest.raises(ConfigError, match=r"--set (prompts: is .* must|repeat.*: real has no such key)"):
            make_plan("real", real, False, [given])
    with pytest.raises(ConfigError, match="there is no scenario 'nothing'"):
        load_scenario("nothing")


def test_a_report_writes_pages_and_results_to_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "# Title\n\nOne\nof {{ plan.repeat }}.\n\nMore.\n\n{{ chart('lines', svg, 'a chart') }}"
    monkeypatch.setattr(report_module._PAGES, "loader", DictLoader({"any.md": template}))
    report = Report("any", this_machine(), {"repeat": 2}, figures=[Spread(1.0, 0.5, 2.0)]).fill(svg="<svg/>")
    page = report.write(tmp_path / "pages", tmp_path / "results").read_text(encoding="utf-8")
    assert page.partition("\n\n")[2] == "# Title\n\nOne of 2.\n\nMore.\n\n![a chart](any-lines.svg)\n"
    assert (tmp_path / "pages/any-lines.svg").is_file()
    data = json.loads((tmp_path / "results/any.json").read_text())
    assert data["figures"][0]["least"] == 0.5 and data["plan"] == {"repeat": 2}


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_run_without_something_that_it_compares_replaces_no_page(
    is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(plan: object, context: Context) -> Report:
        if not is_whole:
            context.leave_out("vLLM: left out")
        return Report("soak", context.machine, plan)

    scenario = SimpleNamespace(Plan=BasePlan, run=run)
    monkeypatch.setattr(command, "load_scenario", lambda name: scenario)
    for folder in ("PAGES", "RESULTS"):
        monkeypatch.setattr(command, folder, tmp_path / folder)
    command.main("soak")
    assert (tmp_path / "PAGES/soak.md").exists() == is_whole
    assert json.loads((tmp_path / "RESULTS/soak.json").read_text())["left_out"] == (
        [] if is_whole else ["vLLM: left out"]
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_unknown_part_is_rejected_by_its_name(name: str) -> None:
    parts = getattr(load_scenario(name), "PARTS", ())
    check_parts(name, tuple(parts), [*parts])
    with pytest.raises(ConfigError, match=r"--part nothing: .* (its parts are|is always measured whole)"):
        check_parts(name, tuple(parts), ["nothing"])
