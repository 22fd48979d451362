"""A release of the chart whose commands are recorded, and an upgrade of it."""

import yaml

from orchestration.release.commands import CommandFailed, Installed, Release
from orchestration.release.upgrade import upgrade
from orchestration.release.values import Values
from tools.chart import CHART

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
MIXES = (
    "RayCluster demo-flyserve-blue: image of its running pods is 1, so that both would mix: use ray.standby"
)
NEW = {"image": {"tag": "2"}}


class Rehearsed(Release):
    """A release whose commands are recorded; one of them fails."""

    def __init__(
        self,
        refusal: str = MIXES,
        fails: str = "",
        values: Values | None = None,
        own: Values | None = None,
    ) -> None:
        super().__init__("demo", "serving", 5)
        self.calls: list[str] = []
        self.given: list[Values] = []
        self.kept: list[int] = []
        """Numbers of routers that are kept over a rollback."""
        self.said: list[str] = []
        self.draining = {"blue": 0, "green": 2}
        """Polls in which a router of the other cluster is still there, by the cluster that all shall use."""
        self.applying = {"green": 1}
        """Polls in which the Job of a cluster has not ended; that of another one never ends."""
        self._refusal, self._fails = refusal, fails
        self._values = values or DEFAULTS
        self._own = {"image": {"tag": "1"}} if own is None else own
        self._revision = 3

    def read(self) -> Installed:
        return Installed(self._revision, "0.1.0", self._values, self._own)

    def check(self, chart: str, values: Values) -> None:
        self.calls.append("check")
        if self._refusal:
            raise CommandFailed(self._refusal)

    def upgrade(self, chart: str, values: Values) -> None:
        ray = values["ray"]
        standby = ray.get("standby", {}).get("name", "")
        self._call(f"upgrade {ray.get('active', 'blue')} {standby}".strip())
        self.given.append(values)

    def roll_back(self, revision: int) -> None:
        self._call(f"rollback {revision}")

    def num_routers(self) -> int:
        return 6

    def keep_routers(self, number: int) -> None:
        self.kept.append(number)

    def revision(self) -> int:
        return self._revision

    def unfinished_jobs(self, color: str, revision: int) -> list[str]:
        assert revision == self._revision
        self.calls.append(f"jobs of {color}?")
        if color in self.applying:
            self.applying[color] -= 1
        return [f"{color}-apply"] if self.applying.get(color, 0) >= 0 else []

    def wait_for_routers(self) -> None:
        self._call("routers ready?")

    def other_routers(self, color: str) -> list[str]:
        self.calls.append(f"routers of {color}?")
        self.draining[color] -= 1
        return ["pod/router-1"] if self.draining[color] >= 0 else []

    def _call(self, call: str) -> None:
        self.calls.append(call)
        self._revision += 1
        if call == self._fails:
            raise CommandFailed("timed out")


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds


def run(
    release: Rehearsed, given: Values | None = NEW, timeout_s: float = 60.0, replace: bool = False
) -> list[str]:
    lines = release.said
    upgrade(release, str(CHART), given, timeout_s, lines.append, Clock(), replace)
    return lines
