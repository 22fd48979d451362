"""Processes with Triton, and the tiny models of the engine's tests."""

from collections.abc import Iterator

import pytest

from tests.nightly.kernels.triton_rig import TritonProcess
from tests.unit.engine.conftest import model_folder as model_folder


@pytest.fixture(scope="session")
def interpreted() -> Iterator[TritonProcess]:
    """A process whose kernels Triton interprets on the CPU."""
    process = TritonProcess(TRITON_INTERPRET="1")
    yield process
    process.stop()


@pytest.fixture(scope="session")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A process whose kernels Triton compiles for GPUs."""
    process = TritonProcess(TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton")))
    yield process
    process.stop()
