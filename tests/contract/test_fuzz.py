"""Fuzzing with the same few cases each time: every RPC answers with a clean status, and leaks nothing."""

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import settings

from tests.contract.fuzz_rig import RPCS, System, check_anything_that_comes_in, running_system

SETTINGS = settings(max_examples=3, derandomize=True)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(tmp_path_factory.mktemp("model")) as made:
        yield made


@pytest.mark.parametrize(("name", "method"), RPCS, ids=lambda value: getattr(value, "name", value))
def test_anything_that_comes_in(system: System, name: str, method: MethodDescriptor) -> None:
    check_anything_that_comes_in(system, name, method, SETTINGS)
