"""The environment that a process of an engine sets before it imports torch."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flyserve.core.messages import Role
from services.engine.config import ModelConfig
from services.engine.factory import build_engine
from services.engine.loading.torch_environment import set_environment

_LOADING = """
from services.engine.config import ModelConfig, Role
from services.engine.factory import build_engine

build_engine(ModelConfig(role=Role.TARGET, model={model!r}, dtype="float32", kv_tokens=64))
"""


def test_a_process_on_the_cpu_sees_no_gpu() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1"}
    set_environment("cuda", environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    set_environment("cpu", environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("variables", "order"),
    [({}, "PCI_BUS_ID"), ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "FASTEST_FIRST")],
)
def test_gpus_have_the_numbers_that_the_driver_lists_or_those_that_the_user_wants(
    variables: dict[str, str], order: str
) -> None:
    environment = dict(variables)
    set_environment("cuda", environment)
    assert environment["CUDA_DEVICE_ORDER"] == order


def test_an_engine_on_the_cpu_hides_the_gpus(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    build_engine(ModelConfig(role=Role.TARGET, model=model_folder("llama"), dtype="float32", kv_tokens=64))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only GNU's OpenMP library shows its settings so")
@pytest.mark.parametrize(
    ("variables", "spins"),
    [
        ({}, "20000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "passive"}, "0"),
        ({"OMP_WAIT_POLICY": "active"}, "30000000000"),
    ],
)
def test_threads_of_an_engine_do_not_spin_for_milliseconds_but_as_the_user_says(
    variables: dict[str, str], spins: str, model_folder: Callable[[str], Path]
) -> None:
    """The library says what it read, so this fails too if something imports torch before it is set."""
    settings = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", _LOADING.format(model=str(model_folder("llama")))],
        env=settings | variables | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr) == [spins], done.stderr
