"""The scenario `memory`: its trace is edited step by step, and memories supply the later requests."""

import io
import json
from pathlib import Path

from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios import memory
from benchmarks.scenarios.memory import ALONE, WAYS, Plan, edited, trace


def test_a_loop_asks_its_problem_again_with_another_number() -> None:
    assert edited("Tom has 12 apples and buys 7 more.", 3) == "Tom has 15 apples and buys 7 more."
    assert edited("Yuri J542 from Accra with Elsa.", 3) == "Yuri J542 from Accra with Elsa."
    steps = trace(Plan(agents=6, steps=3))
    assert [len(prompts) for prompts in steps] == [6, 6, 6]
    assert steps[0] != steps[1] != steps[2]


def test_memories_supply_the_later_requests(tmp_path: Path) -> None:
    context = Context(this_machine(), Parts(tmp_path, "", False), Console(file=io.StringIO()))
    report = memory.run(Plan().quick(), context)
    report.write(tmp_path, tmp_path)
    rows = json.loads((tmp_path / "memory.json").read_text("utf-8"))["figures"]
    supplied = {name: sum(row["supplied"] for row in rows if row["name"] == name) for name in WAYS}
    # A drafter whose first rounds were slow with its memory leaves it out, so not every row has to have some.
    assert supplied.pop(ALONE) == 0 < sum(supplied.values())
    assert all(row["forwards"] > 0 for row in rows)
