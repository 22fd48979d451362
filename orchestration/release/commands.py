"""The commands of helm and kubectl that an upgrade runs."""

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flyserve.core.errors import ConfigError, FlyServeError
from orchestration.release.values import Values

_ROUTERS = "flyserve.io/role=router,flyserve.io/deployment={deployment},flyserve.io/color!={color}"


class CommandFailed(FlyServeError):
    """A command ended with an error; the message is its last output."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A release as it is installed."""

    revision: int
    app_version: str
    values: Values
    """All of them, those of the chart included."""
    own: Values
    """Those that its user gave."""


class Release:
    """A release of the chart in a namespace.

    Args:
        name: Name of the release.
        namespace: Its namespace.
        timeout_s: Time limit of each command that waits for pods.
    """

    def __init__(self, name: str, namespace: str, timeout_s: float) -> None:
        self._name = name
        self._namespace = namespace
        self._wait = ("--wait", "--timeout", f"{timeout_s:.0f}s")

    def read(self) -> Installed:
        """Return the release as it is installed."""
        metadata = self._read("metadata")
        return Installed(
            revision=int(metadata["revision"]),
            app_version=metadata["appVersion"],
            values=self._read("values", "--all"),
            own=self._read("values") or {},
        )

    def check(self, chart: str, values: Values) -> None:
        """Raise CommandFailed if the chart refuses to upgrade to these values; change nothing."""
        self._upgrade(chart, values, "--dry-run=server")

    def upgrade(self, chart: str, values: Values) -> None:
        """Upgrade, and wait until the Jobs have applied the deployment and the routers are ready."""
        self._upgrade(chart, values, *self._wait, "--wait-for-jobs")

    def roll_back(self, revision: int) -> None:
        """Return to an earlier revision, and wait until its routers are ready."""
        _run("helm", "rollback", self._name, str(revision), "--namespace", self._namespace, *self._wait)

    def revision(self) -> int:
        """Return the present revision."""
        return int(self._read("metadata")["revision"])

    def other_routers(self, color: str) -> list[str]:
        """Return the pods of routers, those that end included, that use another cluster than this one."""
        here = ("--namespace", self._namespace, "--output", "name")
        clusters = ("--selector", f"app.kubernetes.io/instance={self._name}")
        label = r"jsonpath={.items[0].metadata.labels.flyserve\.io/deployment}"
        deployment = _run("kubectl", "get", "raycluster", *here[:2], *clusters, "--output", label)
        selector = _ROUTERS.format(deployment=deployment.strip(), color=color)
        return _run("kubectl", "get", "pods", *here, "--selector", selector).split()

    def _upgrade(self, chart: str, values: Values, *flags: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "values.json"
            file.write_text(json.dumps(values), encoding="utf-8")
            place = ("--namespace", self._namespace, "--reset-values", "--values", str(file))
            _run("helm", "upgrade", self._name, chart, *place, *flags)

    def _read(self, what: str, *flags: str) -> Any:
        place = ("--namespace", self._namespace, "--output", "json")
        return json.loads(_run("helm", "get", what, self._name, *place, *flags))


def read_chart(chart: str) -> tuple[Values, str]:
    """Return the values of a chart by itself, and the version of its application."""
    about = yaml.safe_load(_run("helm", "show", "chart", chart))
    return yaml.safe_load(_run("helm", "show", "values", chart)), str(about["appVersion"])


def _run(*words: str) -> str:
    if shutil.which(words[0]) is None:
        raise ConfigError(f"{words[0]} is not on the PATH: an upgrade needs helm 3 and kubectl")
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise CommandFailed(f"{' '.join(words[:3])}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
