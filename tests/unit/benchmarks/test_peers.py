import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.load import interleave
from benchmarks.harness.machine import this_machine
from benchmarks.harness.statistics import Spread
from benchmarks.scenarios import peers
from benchmarks.scenarios.peers import Plan
from benchmarks.scenarios.peers.measure import (
    BASELINE,
    PEERS,
    SETTINGS,
    Answer,
    Decode,
    Run,
    StreamsRun,
    measure_alone,
    measure_streams,
    settings_of,
)
from benchmarks.scenarios.peers.report import (
    PairRuns,
    make_report,
    summarize_alone,
    summarize_streams,
)
from benchmarks.scenarios.peers.vllm_peer import offline_vllm, vllm_python
from fly.errors import ConfigError, NotReady

PROMPTS = ((1, 2), (3,), (4, 5))


def run(prompt: int, repetition: int, seconds: float, tokens: Sequence[int] = (7,) * 10) -> Run:
    return Run(prompt, repetition, Answer(tuple(tokens), seconds))


def test_every_prompt_meets_every_setting_as_often_and_the_order_rotates() -> None:
    asked: list[tuple[str, tuple[int, ...], int]] = []

    def decoder(name: str) -> Decode:
        def decode(prompt: Sequence[int], max_new_tokens: int) -> Answer:
            asked.append((name, tuple(prompt), max_new_tokens))
            return Answer((1,), 1.0)

        return decode

    steps: list[None] = []
    decoders = {name: decoder(name) for name in "abc"}
    runs = measure_alone(decoders, PROMPTS, 99, 2, partial(interleave, advance=lambda: steps.append(None)))
    assert len(asked) == len(steps) == 3 * (1 + 2 * len(PROMPTS))
    assert [(name, length) for name, _, length in asked[:3]] == [("c", 32), ("a", 32), ("b", 32)]
    measured = asked[3:]
    for name, found in runs.items():
        assert [(r.repetition, r.prompt) for r in found] == [(r, p) for r in range(2) for p in range(3)]
        assert [prompt for who, prompt, _ in measured if who == name] == [*PROMPTS, *PROMPTS]
    assert ["".join(name for name, *_ in measured[at : at + 3]) for at in (0, 3, 6)] == ["abc", "bca", "cab"]


def test_ratios_are_of_the_same_prompt_in_the_same_repetition() -> None:
    # The machine slows down tenfold in the second repetition: no ratio sees it.
    base = [run(p, r, s) for r, s in enumerate((1.0, 10.0)) for p in range(3)]
    twice = [replace(b, answer=replace(b.answer, seconds=b.answer.seconds / 2)) for b in base]
    other = "stack, FLy"
    plain, fly = summarize_alone({BASELINE: base, other: twice})
    assert (fly.name, fly.ratio.value, fly.ratio.low, fly.ratio.high) == (other, 2.0, 2.0, 2.0)
    assert fly.ratio_spread == Spread(2.0, 2.0, 2.0) and fly.same_share == 1.0
    assert plain.tokens_per_s == Spread(5.5, 1.0, 10.0)


def test_the_interval_holds_what_prompts_differ_in() -> None:
    base = [run(p, 0, 4.0) for p in range(3)]
    varied = [run(p, 0, 4.0 / (p + 1), tokens=(p,) * 10) for p in range(3)]
    _, found = summarize_alone({BASELINE: base, "stack, FLy": varied})
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == (2.0, 1.0, 3.0)
    assert found.ratio_spread == Spread(2.0, 1.0, 3.0) and found.same_share == 0.0


def test_streams_are_compared_with_plain_at_as_many() -> None:
    asked: list[tuple[str, int]] = []

    def rate(method: str, prompts: Sequence[Sequence[int]]) -> float:
        asked.append((method, len(prompts)))
        return len(prompts) * (3.0 if method == "fly" else 1.0)

    runs = measure_streams(rate, ("plain", "fly"), PROMPTS, (1, 3), 2, interleave)
    assert sorted(asked) == [("fly", 1)] * 2 + [("fly", 3)] * 2 + [("plain", 1)] * 2 + [("plain", 3)] * 2
    assert asked[:4] == [("plain", 1), ("fly", 1), ("fly", 3), ("plain", 3)]
    found = {(f.method, f.streams): (f.tokens_per_s.value, f.ratio) for f in summarize_streams(runs)}
    assert found == {
        ("plain", 1): (1.0, 1.0),
        ("fly", 1): (3.0, 3.0),
        ("plain", 3): (3.0, 1.0),
        ("fly", 3): (9.0, 3.0),
    }


def test_a_model_without_a_drafter_has_only_settings_without_one() -> None:
    alone = settings_of(has_drafter=False)
    assert {each.method for each in alone} == {"generate", "lookup", "plain", "exact", "fly"}
    assert not any(each.with_draft_model for each in alone)
    added = set(settings_of(has_drafter=False, peers=PEERS)) - set(alone)
    assert {each.place for each in added} == PEERS
    with_model = {each for each in SETTINGS if each.with_draft_model is not False}
    assert set(settings_of(has_drafter=True)) == with_model


def test_vllm_is_named_by_its_interpreter(tmp_path: Path) -> None:
    assert vllm_python({}) is None and vllm_python({"VLLM_PYTHON": sys.executable}) == sys.executable
    with pytest.raises(ConfigError, match=f"VLLM_PYTHON: {tmp_path}/none is not a program"):
        vllm_python({"VLLM_PYTHON": f"{tmp_path}/none"})


def test_a_vllm_that_cannot_start_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(
            NotReady, match=r"vllm_offline.py .*ended before it was ready; it printed last: .*vLLM"
        ),
        offline_vllm(sys.executable, tmp_path, "float32", 1, ()),
    ):
        pass


def test_a_missing_model_is_left_out_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "is_fetched", lambda model: False)
    written = StringIO()
    parts = Parts(tmp_path, "plan", resumes=False)
    report = peers.run(Plan(), Context(this_machine(), parts, Console(file=written), only=(peers.REAL,)))
    assert "make real" in written.getvalue() and "smollm2" not in str(report.tables)


def test_the_report_holds_every_figure(tmp_path: Path) -> None:
    runs = {
        setting.name: [run(p, 0, 1.0 / (n + 1), tokens=(7,) * 20) for p in range(3)]
        for n, setting in enumerate(SETTINGS)
    }
    streams = [StreamsRun(m, n, 10.0 * n) for n in (1, 4) for m in ("plain", "fly")]
    report = make_report(this_machine(), Plan(), [PairRuns("demo", runs, streams)])
    text = report.write(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "| stack, FLy + sub-drafter | 180.0 | 9.00x |" in text
    assert "| 4 | 40.0 | 40.0 (1.00x) |" in text.replace(
        "| 4 | 40.0 (1.00x) | 40.0 |", "| 4 | 40.0 | 40.0 (1.00x) |"
    )
    data = json.loads((tmp_path / "peers.json").read_text())
    assert data["pairs"][0]["alone"][0]["name"] == BASELINE
    chart = (tmp_path / "peers-demo.svg").read_text()
    assert "(peers-demo.svg)" in text and ElementTree.fromstring(chart).tag.endswith("svg")
    assert all(setting.name in chart for setting in SETTINGS)
    assert len(report.tables) == 2 and all(table.rich().row_count for table in report.tables)
