"""Groups of tests that run one after the other in one worker, if the suite runs with several workers."""

from xdist.scheduler import LoadScopeScheduling

_SHARED = {
    "ray": ("tests/system/ray/", "tests/system/pair/test_bench_command.py"),
    "e2e": ("tests/system/pair/",),
}
"""Tests with Ray must not run at the same time; e2e tests share fixtures. Any other file is its own group."""
_FIRST = [*_SHARED, "tests/unit/fly/test_draft_length_goodput.py"]
"""Groups that take longest start first, so that no worker ends long after the others."""


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Sends one group after the other to each worker.

    NOTE: xdist's own groups do not work: it adds their names to node ids, which pytest 9.2 stores elsewhere.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Return the group of a test."""
    file = nodeid.partition("::")[0]
    return next((name for name, begins in _SHARED.items() if file.startswith(begins)), file)


def rank(nodeid: str) -> int:
    """Return the rank of a test's group; groups not listed in `_FIRST` share the last."""
    group = group_of(nodeid)
    return _FIRST.index(group) if group in _FIRST else len(_FIRST)
