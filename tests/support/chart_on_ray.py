"""The chart's rendered files and commands, with this machine instead of a cluster."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.chart.charts import Manifest, one, pod_templates

HEAD = "demo-flyserve-head-blue"
LOCAL = {
    f"advertised_host: {HEAD}": "advertised_host: null",
    HEAD: "127.0.0.1",
    "0.0.0.0": "127.0.0.1",
    "port: 50052": "port: 0",
    "port: 8000": "port: 0",
    "port: 9400": "port: 0",
}
"""Replacements of the cluster's addresses and ports by this machine's; port 0 is any free one."""


def deployment_file(manifests: list[Manifest], folder: Path, **more: str) -> Path:
    """Write the deployment file of the ConfigMap, adapted to this machine."""
    text = one(manifests, "ConfigMap", "-config")["data"]["deployment-blue.yaml"]
    for theirs, ours in (LOCAL | more).items():
        text = text.replace(theirs, ours)
    file = yaml.safe_load(text)
    file["router"]["grpc_port"] = 0  # the chart leaves it to the default
    path = folder / "deployment-blue.yaml"
    path.write_text(yaml.safe_dump(file), encoding="utf-8")
    return path


def command(manifests: list[Manifest], role: str, **places: str) -> list[str]:
    """Return the command of a role's container, with `places` replaced."""
    pods = (pod for pod in pod_templates(manifests) if pod["metadata"]["labels"]["flyserve.io/role"] == role)
    words: list[str] = next(pods)["spec"]["containers"][0]["command"]
    for theirs, ours in places.items():
        assert theirs in words, words
        words = [ours if word == theirs else word for word in words]
    return words


@contextmanager
def serving(words: list[str]) -> Iterator[str]:
    """Run a command; yield the address at which it is ready."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready ")), None)
        if ready is None:
            raise AssertionError(process.communicate()[1])
        yield ready.split()[1]
    finally:
        process.terminate()
        process.communicate(timeout=600)


def generated(manifests: list[Manifest], address: str, **places: str) -> str:
    """Run the command of the `helm test` pod; return its output."""
    words = command(manifests, "test", **{"demo-flyserve:50051": address, **places})
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
