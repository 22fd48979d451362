"""`--watch` on a terminal that is too small for the picture."""

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from flyserve.cli import app
from flyserve.cli.cluster import status as status_command
from orchestration.control.status import DeploymentStatus
from tests.unit.flyserve.sample_status import FAILED, READY, status

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.usefixtures("coloured_terminal")
def test_no_line_is_cut_and_faults_come_before_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COLUMNS", "30"), ("LINES", "12")):
        monkeypatch.setenv(name, value)
    ready = [replace(READY, replica=f"target-{number}") for number in range(20)]
    looks = iter([status(*ready, replace(FAILED, replica="target-20"))])

    def read_status(controller: None) -> DeploymentStatus:
        if (look := next(looks, None)) is None:
            raise KeyboardInterrupt
        return look

    monkeypatch.setattr(status_command, "controller_of", lambda *_: nullcontext())
    monkeypatch.setattr(status_command, "read_status", read_status)
    result = CliRunner().invoke(app, ["status", "--watch", "--every-s", "0.1"])
    assert result.exit_code == 130
    watched, _, last = CONTROL.sub("", result.stdout).partition("...")
    assert len(watched.splitlines()) <= 12 and all(len(line) <= 30 for line in watched.splitlines())
    assert "target-20: /m: no weights; correct it look at this replica start state" in words(watched)
    for number in range(20):
        row = f"target-{number} 3 ready 7 s 10.0.0.1 (ab12) 10.0.0.1:50100 5 2 25% of 200"
        assert row in words(last), "the last picture stays as a whole"
