"""`make images`: the calls of the container engine, and the error without one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from flyserve.core.version import VERSION
from tests.support.processes import ROOT
from tools.release import find_faults

SCRIPT = ROOT / "tools" / "images.sh"
WORKS = '#!/bin/sh\necho "$@" >> "$CALLS"\n'
FAILS = "#!/bin/sh\nexit 1\n"


def build(
    folder: Path, engines: dict[str, str], *devices: str, **environment: str
) -> tuple[int, str, list[str]]:
    """Run the script where these programs are the container engines; return status, errors and builds."""
    for name in ("bash", "sed", "dirname"):
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, program in engines.items():
        (folder / name).write_text(program)
        (folder / name).chmod(0o755)
    calls = folder / "calls"
    calls.touch()
    given = {"PATH": str(folder), "CALLS": str(calls), **environment}
    done = subprocess.run([folder / "bash", SCRIPT, *devices], env=given, capture_output=True, text=True)
    builds = [line for line in calls.read_text().splitlines() if line != "info"]
    return done.returncode, done.stderr, builds


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_every_image_is_built_with_the_engine_that_there_is(engine: str, tmp_path: Path) -> None:
    status, _, builds = build(tmp_path, {engine: WORKS})
    tags = [f"{VERSION}-slim", VERSION, f"{VERSION}-cuda", f"{VERSION}-vllm"]
    devices = ("slim", "cpu", "cuda", "vllm")
    assert status == 0
    assert builds == [
        f"build --tag flyserve:{tag} --build-arg DEVICE={device} ."
        for tag, device in zip(tags, devices, strict=True)
    ]


def test_names_base_and_index_can_be_given(tmp_path: Path) -> None:
    given = {
        "REPOSITORY": "here/flyserve",
        "TAG": "7",
        "BASE": "python@sha256:0",
        "TORCH_INDEX": "https://cpu",
    }
    status, _, builds = build(tmp_path, {"docker": WORKS}, "slim", "cpu", **given)
    assert (status, builds) == (
        0,
        [
            "build --tag here/flyserve:7-slim --build-arg DEVICE=slim --build-arg BASE=python@sha256:0 .",
            "build --tag here/flyserve:7 --build-arg DEVICE=cpu --build-arg BASE=python@sha256:0"
            " --build-arg TORCH_INDEX=https://cpu .",
        ],
    )


def test_an_engine_that_does_not_answer_is_passed_over(tmp_path: Path) -> None:
    status, _, builds = build(tmp_path, {"docker": FAILS, "podman": WORKS}, "slim")
    assert status == 0 and len(builds) == 1


def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    status, errors, _ = build(tmp_path, {"docker": FAILS})
    assert status == 1
    assert errors == (
        "error: no image can be built here: docker is installed, but 'docker info' fails: is its service"
        " running?; podman is not installed\n"
    )


def test_an_unknown_image_is_refused(tmp_path: Path) -> None:
    status, errors, _ = build(tmp_path, {"docker": WORKS}, "gpu")
    assert (status, errors) == (2, "error: gpu: must be slim, cpu, cuda or vllm\n")


def released(folder: Path, version: str = VERSION, changes: str = f"# Changes\n\n## {VERSION}\n") -> Path:
    """A project of one commit, with a chart of this version and these notes."""
    (folder / "helm" / "flyserve").mkdir(parents=True)
    (folder / "helm" / "flyserve" / "Chart.yaml").write_text(f"version: {version}\nappVersion: {version}\n")
    (folder / "CHANGELOG.md").write_text(changes)
    alone = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "All"]):
        named = ["-c", "user.name=Test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", *named, *command], cwd=folder, check=True, env=alone)
    return folder


def test_a_release_has_one_version_and_no_open_change(tmp_path: Path) -> None:
    assert find_faults(released(tmp_path / "good")) == []
    other = released(tmp_path / "other", "0.0.1", "# Changes\n")
    (other / "CHANGELOG.md").write_text("# Changes\n\n")
    assert find_faults(other) == [
        "there are changes that are not committed",
        f"version of the chart is 0.0.1, must be {VERSION} (flyserve/core/version.py)",
        f"appVersion of the chart is 0.0.1, must be {VERSION} (flyserve/core/version.py)",
        f"CHANGELOG.md has no part {VERSION}",
    ]
