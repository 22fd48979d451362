"""Which tests follow each other in one process, where the suite runs in several."""

from xdist.scheduler import LoadScopeScheduling

_SHARED = {"ray": ("tests/ray/", "tests/e2e/test_bench_command.py"), "e2e": ("tests/e2e/",)}
"""One Ray at a time starts; what the files of a folder share is made once. Any other file is on its own."""
_FIRST = [*_SHARED]
"""What takes longest must not begin last."""


class Stations(LoadScopeScheduling):  # type: ignore[misc]
    """Hands a process one station after the other.

    NOTE: not xdist's own groups: it adds their names to what pytest 9.2 keeps elsewhere.
    """

    def _split_scope(self, nodeid: str) -> str:
        return station_of(nodeid)


def station_of(nodeid: str) -> str:
    """The station of a test."""
    file = nodeid.partition("::")[0]
    return next((name for name, begins in _SHARED.items() if file.startswith(begins)), file)


def rank(nodeid: str) -> int:
    """The place of a test's station among all; many have the last."""
    station = station_of(nodeid)
    return _FIRST.index(station) if station in _FIRST else len(_FIRST)
