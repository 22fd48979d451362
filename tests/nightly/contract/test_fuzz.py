"""Fuzzing with ten thousand cases: every RPC answers with a clean status, keeps serving, leaks nothing."""

import os
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import settings

from tests.contract.fuzz_rig import BATCH, RPCS, System, check_anything_that_comes_in, running_system

CASES = int(os.environ.get("FLYSERVE_FUZZ_CASES", "680"))
"""Calls to every RPC."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(tmp_path_factory.mktemp("model")) as made:
        yield made


@pytest.mark.parametrize(("name", "method"), RPCS, ids=lambda value: getattr(value, "name", value))
def test_anything_that_comes_in(system: System, name: str, method: MethodDescriptor) -> None:
    check_anything_that_comes_in(system, name, method, settings(max_examples=CASES // BATCH))
