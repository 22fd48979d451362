"""The scenario `peers`: its ways of decoding, what is left out, its report."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness.command import Context
from benchmarks.harness.machine import this_machine
from benchmarks.harness.runs import Run, checksum
from benchmarks.scenarios import peers
from benchmarks.scenarios.peers import Plan
from benchmarks.scenarios.peers.plan import BASELINE, REAL, WITH_DRAFTER, WITH_LOOKUP, Answer
from benchmarks.scenarios.peers.vllm_peer import offline_vllm, vllm_python
from benchmarks.scenarios.peers.ways import as_send
from flyserve.core.errors import ConfigError, NotReady


def test_another_program_is_compared_by_its_tokens_its_time_and_its_tau(tmp_path: Path) -> None:
    def decode(prompt: Sequence[int], max_new_tokens: int) -> Answer:
        return Answer((7,) * max_new_tokens, 2.0)

    base = [as_send(decode, 10)((1, 2), number, 0, "") for number in range(3)]
    assert base[0].checksum == checksum([7] * 10) != checksum([7] * 9)
    assert (base[0].statistics.emitted, base[0].statistics.draft_rounds) == (10, 0)
    drafted = as_send(lambda prompt, count: Answer((7,) * count, 1.0, tau=5.0), 10)
    runs = {BASELINE: base, "published FLy loop": [drafted((1, 2), number, 0, "") for number in range(3)]}
    runs["llama.cpp"] = [replace(run, seconds=4.0, checksum=1) for run in base]
    page = peers.make_report(this_machine(), Plan(), {"demo": runs}).write(tmp_path, tmp_path).read_text()
    assert "| transformers generate | 5 | 1.00x | 1.00 to 1.00 | - | 100% |" in page
    assert "| published FLy loop | 10 | 2.00x | 2.00 to 2.00 | 5.00 | 100% |" in page
    assert "| llama.cpp | 2 | 0.50x | 0.50 to 0.50 | - | 0% |" in page
    assert (tmp_path / "peers-demo.svg").is_file() and isinstance(runs[BASELINE][0], Run)


def test_a_model_without_a_drafter_has_looked_up_drafts_alone() -> None:
    assert {way.mode for way in WITH_DRAFTER.values()} == {way.mode for way in WITH_LOOKUP.values()}
    assert not any(way.sub_drafter for way in WITH_LOOKUP.values())
    assert {name for name, way in WITH_DRAFTER.items() if way.preset} == {"FLy official"}


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


def test_a_missing_model_is_left_out_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "is_fetched", lambda model: False)
    written = StringIO()
    report = peers.run(Plan(), Context(this_machine(), Console(file=written), only=(REAL,)))
    assert "make real" in written.getvalue() and "smollm2" not in str(report.tables)
