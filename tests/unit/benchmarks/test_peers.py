"""The scenario `peers`: who wins where, what is left out, its report, its parts from several runs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness.command import Context, earlier_results
from benchmarks.harness.machine import this_machine
from benchmarks.harness.runs import Parts, Run, Runs, checksum, compare_prompts, measure_parts
from benchmarks.scenarios import peers
from benchmarks.scenarios.peers import PARTS, Plan
from benchmarks.scenarios.peers.plan import BASELINE, MODES, WAYS, Answer, Kind, edits
from benchmarks.scenarios.peers.table import duel, make_goals, whole
from benchmarks.scenarios.peers.vllm_peer import offline_vllm
from benchmarks.scenarios.peers.ways import as_send
from flyserve.core.errors import ConfigError, NotReady
from flyserve.core.response import Statistics
from tests.support.processes import ROOT

SECONDS = {BASELINE: 4.0, "transformers prompt lookup": 2.0, "llama.cpp f16": 1.0, "llama.cpp Q8": 0.5} | {
    "FlyServe plain": 2.0,
    "FlyServe exact": 0.8,
    "FlyServe FLy": 0.4,
}


def runs(**seconds: float) -> Runs:
    """Return three responses of ten tokens by each way."""
    times = {**SECONDS, **{name.replace("_", " "): each for name, each in seconds.items()}}
    return {
        name: [Run(number, 0, each, Statistics(emitted=10), 1) for number in range(3)]
        for name, each in times.items()
    }


def test_another_program_is_compared_by_its_tokens_its_time_and_its_tau() -> None:
    def decode(prompt: Sequence[int], max_new_tokens: int) -> Answer:
        return Answer((7,) * max_new_tokens, 2.0)

    plain = as_send(decode, 10)((1, 2), 0, 0, "")
    assert plain.checksum == checksum([7] * 10) != checksum([7] * 9)
    assert (plain.statistics.emitted, plain.statistics.draft_rounds, plain.seconds) == (10, 0, 2.0)
    drafted = as_send(lambda prompt, count: Answer((7,) * count, 1.0, tau=5.0), 10)((1, 2), 0, 0, "")
    assert (drafted.statistics.tau, drafted.statistics.draft_rounds) == (5.0, 1)


def test_the_fastest_ways_that_may_answer_are_compared() -> None:
    plain = duel(runs(), 16, Kind.PLAIN)
    assert plain and str(plain) == "llama.cpp f16: FlyServe 0.50x"
    same, fly = duel(runs(), 16, Kind.SAME), duel(runs(), 16, Kind.FLY)
    assert same and (same.ours, str(same)) == ("FlyServe exact", "**FlyServe**, 1.25x llama.cpp f16")
    assert fly and (fly.ours, fly.other) == ("FlyServe FLy", "llama.cpp f16")
    assert duel(runs(), 8, Kind.PLAIN) is None
    noisy = runs()
    noisy["FlyServe plain"] = [
        replace(run, seconds=s) for run, s in zip(noisy["FlyServe plain"], (0.5, 1.0, 2.0), strict=True)
    ]
    even = duel(noisy, 16, Kind.PLAIN)
    assert even and str(even) == "mixed, 0.86x llama.cpp f16"


def test_prompts_of_several_kinds_are_several_prompts() -> None:
    tables = {"chat": runs(), "edits": runs(FlyServe_exact=2.0)}
    together = whole(tables)
    assert [len({run.prompt for run in own}) for own in together.values()] == [6] * len(SECONDS)
    found = compare_prompts(together["FlyServe exact"], together["llama.cpp f16"])
    assert (found.least, found.most) == (0.5, 1.25) and found.value == pytest.approx(6 / 8.4)


def test_one_table_has_every_way_in_every_place_after_the_winners(tmp_path: Path) -> None:
    demo = {name: own for name, own in runs().items() if "llama" not in name}
    parts: Parts = {"smollm2-1": {"chat": runs(), "code": runs()}, "demo-2": {"demo problems": demo}}
    report = peers.make_report(this_machine(), Plan(), parts)
    page = report.write(tmp_path, tmp_path).read_text()
    first = page.splitlines()[0]
    assert first.startswith("Measured at commit ") and "torch thread" not in first
    heads = "chat, 1 thread | code, 1 thread | demo problems, 2 threads |"
    assert page.index(f"|  | {heads}") < page.index(f"| tokens/s | {heads}")
    assert "| llama.cpp f16 | 10 (4.00x) | 10 (4.00x) | - |" in page
    assert "| FlyServe plain | 5 (2.00x) | 5 (2.00x) | 5 (2.00x) |" in page
    assert (
        "| 16 bits, token by token | llama.cpp f16: FlyServe 0.50x | llama.cpp f16: FlyServe 0.50x |" in page
    )
    assert "**FlyServe**, 2.00x transformers generate |" in page and "vLLM generate" not in page
    assert (tmp_path / "peers-smollm2-1.svg").is_file() and (tmp_path / "peers-demo-2.svg").is_file()


def test_the_goals_are_of_the_real_model(tmp_path: Path) -> None:
    parts: Parts = {"smollm2-2": {"chat": runs(), "edits": runs(FlyServe_exact=1.0)}, "demo-1": {"x": runs()}}
    goals = {goal.name: goal for goal in make_goals(parts)}
    assert list(goals) == [
        "token by token, 2 thread(s)",
        "drafts, chat, 2 threads",
        "drafts, edits, 2 threads",
    ]
    assert [goal.verdict for goal in goals.values()] == ["missed", "met", "missed"]
    on_vllm = {"vLLM_generate": 2.0, "FlyServe_on_vLLM_plain": 1.0}
    (goal,) = (goal for goal in make_goals({"smollm2-1": {"edits": runs(**on_vllm)}}) if "vLLM" in goal.name)
    assert (goal.name, goal.verdict) == ("token by token on vLLM, 1 thread(s)", "met")


def test_every_way_of_flyserve_has_its_kind() -> None:
    ours = {name: way.kind for name, way in WAYS.items() if way.is_ours and way.bits == 16}
    assert ours == {
        f"{name} {mode}": kind
        for name in ("FlyServe", "FlyServe on vLLM")
        for mode, kind in zip(MODES, Kind, strict=True)
    }
    assert WAYS[BASELINE] == WAYS["vLLM generate"] and not any(way.is_ours for way in (WAYS[BASELINE],))


def test_neighbouring_edits_differ_in_text_and_task(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list[str]()
    monkeypatch.setattr(
        "benchmarks.scenarios.peers.plan.renderer",
        lambda folder: lambda item: shown.append(item["messages"][0]["content"]) or (),
    )
    assert len(edits(Path(), 17)) == 17
    tasks, texts = zip(*(each.split("\n\n", 1) for each in shown), strict=True)
    assert len(set(shown)) == 16 and shown[16] == shown[0]
    assert len(set(tasks[:4])) == len(set(texts[:4])) == 4


def test_parts_of_several_runs_make_one_report(tmp_path: Path) -> None:
    machine, plan = replace(this_machine(), commit="1234abcd"), Plan()
    first = peers.make_report(machine, plan, {"demo-1": {"demo problems": runs()}})
    first.data |= {"machine": machine, "left_out": ["no vLLM"]}
    first.write(tmp_path, tmp_path)
    found = earlier_results("peers", tmp_path, machine, plan)
    assert found["left_out"] == ["no vLLM"]
    context = Context(machine, Console(file=StringIO()), only=("demo-2",), earlier=found["runs"])
    joined = measure_parts(context, PARTS, lambda part: {"demo problems": runs(FlyServe_FLy=0.1)})
    assert list(joined) == ["demo-1", "demo-2"] and joined["demo-1"] == {"demo problems": runs()}
    assert joined["demo-2"]["demo problems"]["FlyServe FLy"][0].seconds == 0.1
    others = (
        (replace(machine, commit="other"), plan),
        (replace(machine, commit="1234abcd-dirty"), plan),
        (replace(machine, versions={"torch": "1"}), plan),
        (machine, replace(plan, prompts=9)),
    )
    for other, changed in others:
        with pytest.raises(ConfigError, match="measure all again"):
            earlier_results("peers", tmp_path, other, changed)


def test_results_that_are_cut_or_missing_or_of_another_scenario_cannot_be_joined(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--join: .*peers.json is missing"):
        earlier_results("peers", tmp_path, replace(this_machine(), commit="1234abcd"), Plan())
    (tmp_path / "peers.json").write_text('{"machine": {"comm')
    with pytest.raises(ConfigError, match=r"--join: .*peers.json cannot be read"):
        earlier_results("peers", tmp_path, replace(this_machine(), commit="1234abcd"), Plan())
    with pytest.raises(ConfigError, match="--join: soak is measured in one run; only peers, real"):
        earlier_results("soak", tmp_path, this_machine(), Plan())


def test_a_vllm_that_cannot_start_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(NotReady, match=r"vllm_offline.py ended before it was ready; it printed last: .*vLLM"),
        offline_vllm(sys.executable, tmp_path, "float32", 1, "null", ()),
    ):
        pass


def test_a_missing_model_is_left_out_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "is_fetched", lambda model: False)
    monkeypatch.setattr("benchmarks.harness.workloads._MADE", ROOT / "missing")
    monkeypatch.delenv("WORKLOADS_PYTHON", raising=False)
    written = StringIO()
    context = Context(this_machine(), Console(file=written), only=("smollm2-1",))
    report = peers.run(Plan(), context)
    assert len(context.left_out) == 2
    assert "make real" in written.getvalue() and "make workloads" in written.getvalue()
    assert not report.data["runs"] and json.dumps(report.charts) == "{}"
