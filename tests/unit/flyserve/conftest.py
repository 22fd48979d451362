from collections.abc import Iterator

import pytest

from tests.unit.flyserve.fake_generation import FakeGeneration, fake_generation


@pytest.fixture
def served() -> Iterator[tuple[FakeGeneration, str]]:
    with fake_generation() as served:
        yield served


@pytest.fixture
def coloured_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard output and standard error be a terminal with colours, as far as rich can see."""
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
