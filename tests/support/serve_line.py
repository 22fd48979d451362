"""Lines of `flyserve serve` that only print the deployment file, and the machine that they are for."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from flyserve.cli import app
from orchestration.machine import serving
from services.common.machine.gpus import Gpu
from services.common.machine.machine import Machine


def use_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a machine with two cores, 1 GB and no GPU in the place of the one that runs the test."""
    monkeypatch.setattr(serving, "find_machine", lambda: Machine(cores=2, memory_bytes=10**9))


def use_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a machine with 8 GPUs of 80 GB in the place of the one that runs the test."""
    made = tuple(Gpu(f"GPU-{index}", 80 * 10**9) for index in range(8))
    monkeypatch.setattr(serving, "find_machine", lambda: Machine(64, 10**12, gpus=made, has_cuda=True))


def printed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["serve", *map(str, arguments), "--print-config"])


def content(*arguments: str | Path) -> Any:
    result = printed(*arguments)
    assert result.exit_code == 0, result.stderr
    return yaml.safe_load(result.stdout)
