"""A real cluster as tests use it: one context, a namespace of their own, kubectl and helm."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import yaml

from tools.chart import CHART, binary

HANG_S = 1800.0
"""Ends what hangs; no test is judged by it."""
POLL_S = 0.5
POD_SECURITY = "pod-security.kubernetes.io/enforce=restricted"

Values = dict[str, Any]


class Failed(Exception):
    """A command ended with an error; the message is its output."""


class Cluster:
    """A namespace of a cluster. All commands see a configuration with the named context alone.

    Args:
        kubeconfig: File with that context, which is the current one.
        namespace: Name of the namespace.
    """

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.namespace = namespace
        folders = {f"HELM_{kind}_HOME": str(kubeconfig.parent) for kind in ("CONFIG", "CACHE", "DATA")}
        path = os.pathsep.join([str(Path(binary()).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path, **folders}

    def kubectl(self, *words: str, given: Any = None) -> str:
        """Return what kubectl prints, after warnings of the API server; `given` is its input, as JSON."""
        return self.run("kubectl", "--namespace", self.namespace, *words, given=given)

    def get(self, *words: str) -> Any:
        """Return an object, or a list, as the API server has it."""
        return json.loads(self.kubectl("get", *words, "--output", "json"))

    def names(self, *words: str) -> list[str]:
        """Return the names of objects as `kind/name`; none if there is no such object."""
        return self.kubectl("get", *words, "--ignore-not-found", "--output", "name").split()

    def apis(self) -> set[str]:
        """Return the groups and versions that the API server has."""
        return set(self.kubectl("api-versions").split())

    def wait_for(self, state: Callable[[], Any]) -> Any:
        """Return the first true value of `state`."""
        deadline = time.monotonic() + HANG_S
        while not (found := state()):
            assert time.monotonic() < deadline, f"waited {HANG_S:g} s: {self.kubectl('get', 'pods,events')}"
            time.sleep(POLL_S)
        return found

    def run_once(self, name: str, image: str, *command: str) -> str:
        """Run a command in a pod, which goes with the namespace; return its output."""
        container = {"name": "only", "image": image, "command": [*command], "securityContext": _RESTRICTED}
        spec = {"restartPolicy": "Never", "containers": [container]}
        metadata = {"name": name}
        self.kubectl("create", "-f", "-", given=_object("v1", "Pod", metadata=metadata, spec=spec))
        ended = ("Succeeded", "Failed")
        self.wait_for(lambda: self.get("pod", name)["status"].get("phase") in ended)
        return self.kubectl("logs", name)

    def helm(self, verb: str, *words: str, values: Any = None) -> str:
        """Run helm; `values` are those of the release."""
        with TemporaryDirectory() as folder:
            file = Path(folder, "values.yaml")
            file.write_text(yaml.safe_dump(values or {}), encoding="utf-8")
            given = ("--values", str(file)) if verb in ("install", "upgrade") else ()
            return self.run("helm", verb, *words, "--namespace", self.namespace, *given)

    def install(self, release: str, values: Any = None, *words: str) -> str:
        """Install a release of the chart; return its notes."""
        return self.helm("install", release, str(CHART), *words, values=values)

    def upgrade(self, release: str, values: Any = None, *words: str) -> str:
        """Upgrade a release to these values; return its notes."""
        return self.helm("upgrade", release, str(CHART), "--reset-values", *words, values=values)

    def run(self, *words: str, given: Any = None) -> str:
        text = None if given is None else json.dumps(given)
        done = subprocess.run(
            words, env=self.environment, input=text, capture_output=True, text=True, timeout=HANG_S
        )
        if done.returncode:
            raise Failed(f"{' '.join(words[:8])}: {(done.stderr or done.stdout).strip()}")
        warnings = "".join(line for line in done.stderr.splitlines(True) if line.startswith("Warning"))
        return warnings + done.stdout


@contextmanager
def only_context(context: str, folder: Path) -> Iterator[Path]:
    """Yield a configuration of kubectl with this context alone: no command reaches another cluster."""
    words = ("kubectl", "config", "view", "--minify", "--flatten", "--context", context)
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S)
    if done.returncode:
        raise Failed(f"FLYSERVE_TEST_CONTEXT: kubectl does not have {context}: {done.stderr.strip()}")
    file = folder / "kubeconfig"
    file.touch(mode=0o600)
    file.write_text(done.stdout, encoding="utf-8")
    yield file
    file.unlink()


@contextmanager
def namespace(kubeconfig: Path) -> Iterator[Cluster]:
    """Make a namespace in which pods must meet the restricted standard; remove it in the end."""
    cluster = Cluster(kubeconfig, f"flyserve-test-{uuid4().hex[:8]}")
    cluster.kubectl("create", "namespace", cluster.namespace)
    try:
        cluster.kubectl("label", "namespace", cluster.namespace, POD_SECURITY)
        # An API server without controllers makes none.
        if not cluster.names("serviceaccount", "default"):
            cluster.kubectl("create", "serviceaccount", "default")
        yield cluster
    finally:
        cluster.kubectl("delete", "namespace", cluster.namespace, "--wait=false")


def image_values(reference: str) -> Values:
    """Return the values that run this image."""
    name, _, digest = reference.partition("@")
    has_tag = ":" in name.rpartition("/")[2]
    repository, tag = name.rsplit(":", 1) if has_tag else (name, "latest")
    return {"repository": repository, "tag": tag, "digest": digest}


def as_list(items: list[Any]) -> Values:
    """Return objects as the one object that kubectl reads."""
    return _object("v1", "List", items=items)


def _object(version: str, kind: str, **rest: Any) -> Values:
    return {"apiVersion": version, "kind": kind, **rest}


_RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
