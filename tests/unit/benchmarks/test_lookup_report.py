"""The report of the scenario `lookup`."""

import io
import json
from pathlib import Path

from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.lookup import (
    BASELINE,
    ENDLESS,
    FIRST,
    SECOND,
    SETTINGS,
    Batch,
    Plan,
    cut,
    make_report,
)


def batches(seconds: float) -> list[Batch]:
    return [Batch(seconds, tokens=100, rounds=50, drafted=80, accepted=40)] * 3


def test_every_setting_is_compared_with_plain_in_every_part(tmp_path: Path) -> None:
    measured = {setting.name: batches(0.5) for setting in SETTINGS} | {BASELINE.name: batches(1.0)}
    found = {f"{part}, 1 at once": measured for part in (FIRST, SECOND, ENDLESS)}
    context = Context(this_machine(), Parts(tmp_path, "", False), Console(file=io.StringIO()))
    page = make_report(Plan(), context, found).write(tmp_path, tmp_path).read_text(encoding="utf-8")
    for setting in SETTINGS:
        assert page.count(f"| {setting.name} |") == 3
    assert "| suffix, exact | 200 | 2.00x | 2.00 to 2.00 | 2.00 | 0.80 | 50% |" in page
    goals = json.loads((tmp_path / "lookup.json").read_text())["goals"]
    found_goals = [(goal["limit"], goal["measured"]["value"]) for goal in goals]
    assert found_goals == [(limit, 2) for limit in (1.3, 1.3, 2.0, 2.0, 0.97, 0.97)]


def test_prompts_are_cut_into_batches() -> None:
    prompts = tuple((number,) for number in range(5))
    assert [len(batch) for batch in cut(prompts, 2)] == [2, 2, 1]
    assert [prompt for batch in cut(prompts, 4) for prompt in batch] == list(prompts)
