"""The part `masks` of the scenario `acceleration` measures verifications with and without masks."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.harness.command import Context, Parts
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.acceleration import Plan
from benchmarks.scenarios.acceleration.masks import MASKED, UNMASKED, measure_masks


def test_masks_are_measured_beside_none(tmp_path: Path) -> None:
    context = Context(this_machine(), Parts(tmp_path, "", False), Console(file=io.StringIO()))
    found = measure_masks(replace(Plan(), streams=(2,), mask_repeat=1), context)[2]
    assert {name: len(values) for name, values in found.items()} == {MASKED: 1, UNMASKED: 1}
    assert min(*found[MASKED], *found[UNMASKED]) > 0.02
