"""Groups of tests that run one after the other in one worker, if the suite runs with several workers."""

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_SHARED = {
    "ray": ("tests/system/ray/", "tests/nightly/ray/"),
    "pair": ("tests/system/pair/", "tests/nightly/pair/"),
}
"""Two tests with Ray must not run at the same time; tests with the pair share a deployment, and start first.

Any other file is its own group.
"""


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Sends one group after the other to each worker.

    NOTE: xdist's own groups do not work: it adds their names to node ids, which pytest 9.2 stores elsewhere.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        """Send groups until a worker has two tests, or nothing is left.

        It starts a test only when it knows the next, or that there is none. One that replaces a worker that
        has died would get a single group, and wait for ever if that has one test left.
        """
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def group_of(nodeid: str) -> str:
    """Return the group of a test."""
    file = nodeid.partition("::")[0]
    return next((name for name, begins in _SHARED.items() if file.startswith(begins)), file)


def rank(nodeid: str) -> int:
    """Return the rank of a test's group: those that take longest run first."""
    group = group_of(nodeid)
    return [*_SHARED, group].index(group)
