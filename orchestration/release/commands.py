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


class JobFailed(FlyServeError):
    """A Job has failed; the message has the reason and the command that shows its log."""


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
        timeout_s: Time limit of the command that waits for routers.
    """

    def __init__(self, name: str, namespace: str, timeout_s: float) -> None:
        self._name = name
        self._namespace = namespace
        self._timeout_s = timeout_s

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
        """Upgrade; pods and Jobs that this starts go on.

        NOTE: helm would wait for all of them, those of a broken cluster that is to be replaced included.
        """
        self._upgrade(chart, values)

    def roll_back(self, revision: int) -> None:
        """Return to an earlier revision; pods and Jobs that this starts go on.

        NOTE: helm sets the number of routers back to that of the revision, also where an autoscaler owns it.
        """
        _run("helm", "rollback", self._name, str(revision), "--namespace", self._namespace)

    def num_routers(self) -> int:
        """Return the number of routers that there should be now."""
        return self._routers()[1]

    def keep_routers(self, number: int) -> None:
        """Scale the routers up to a number that they had, if it is an autoscaler's."""
        deployment, now = self._routers()
        if now < number and self._read("values", "--all")["pods"]["router"]["autoscaling"]["enabled"]:
            place = ("--namespace", self._namespace, "--replicas", str(number))
            _run("kubectl", "scale", "deployment", deployment, *place)

    def revision(self) -> int:
        """Return the present revision."""
        return int(self._read("metadata")["revision"])

    def unfinished_jobs(self, color: str, revision: int) -> list[str]:
        """Return the Jobs of a revision that have not applied the deployment to a cluster yet.

        Raises:
            JobFailed: One of them has failed.
        """
        place = ("--namespace", self._namespace, "--selector", f"app.kubernetes.io/instance={self._name}")
        jobs = json.loads(_run("kubectl", "get", "jobs", *place, "--output", "json"))["items"]
        of_cluster = [job for job in jobs if f"-{color}-apply-{revision}-" in job["metadata"]["name"]]
        return [job["metadata"]["name"] for job in of_cluster if not self._has_ended(job)]

    def wait_for_routers(self) -> None:
        """Wait until all routers are those of the present revision, and ready."""
        limit = ("--timeout", f"{self._timeout_s:.0f}s")
        _run("kubectl", "rollout", "status", "deployment", *self._of_routers, *limit)

    def other_routers(self, color: str) -> list[str]:
        """Return the pods of routers, those that end included, that use another cluster than this one."""
        here = ("--namespace", self._namespace, "--output", "name")
        clusters = ("--selector", f"app.kubernetes.io/instance={self._name}")
        label = r"jsonpath={.items[0].metadata.labels.flyserve\.io/deployment}"
        deployment = _run("kubectl", "get", "raycluster", *here[:2], *clusters, "--output", label)
        selector = _ROUTERS.format(deployment=deployment.strip(), color=color)
        return _run("kubectl", "get", "pods", *here, "--selector", selector).split()

    @property
    def _of_routers(self) -> tuple[str, ...]:
        """Arguments of kubectl that select the routers' Deployment."""
        selector = f"app.kubernetes.io/instance={self._name},flyserve.io/role=router"
        return ("--namespace", self._namespace, "--selector", selector)

    def _routers(self) -> tuple[str, int]:
        """Return the name of the routers' Deployment and its number of routers; "" and 0 if it is missing."""
        found = _run("kubectl", "get", "deployment", *self._of_routers, "--output", "json")
        for deployment in json.loads(found)["items"]:
            return deployment["metadata"]["name"], deployment["spec"]["replicas"]
        return "", 0

    def _upgrade(self, chart: str, values: Values, *flags: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "values.json"
            file.write_text(json.dumps(values), encoding="utf-8")
            place = ("--namespace", self._namespace, "--reset-values", "--values", str(file))
            _run("helm", "upgrade", self._name, chart, *place, *flags)

    def _has_ended(self, job: Any) -> bool:
        """Return True if a Job has succeeded; raise JobFailed if it has failed."""
        conditions = job.get("status", {}).get("conditions", ())
        ended = {each["type"]: each for each in conditions if each["status"] == "True"}
        if failed := ended.get("Failed"):
            name = job["metadata"]["name"]
            reason = f"{failed.get('reason')}: {failed.get('message')}"
            raise JobFailed(f"job/{name}: {reason}: kubectl -n {self._namespace} logs job/{name}")
        return "Complete" in ended

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
