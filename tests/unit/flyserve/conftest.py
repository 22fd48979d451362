from collections.abc import Iterator

import pytest

from tests.unit.flyserve.fake_generation import FakeGeneration, fake_generation


@pytest.fixture
def served() -> Iterator[tuple[FakeGeneration, str]]:
    with fake_generation() as served:
        yield served
