"""The wheels, installed beside an application whose folders have the names of our packages."""

import os
import site
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from flyserve.core.version import VERSION
from tests.support.processes import Deployment
from tools import wheels

SHADOWS = ("protos", "fly", "router", "services", "demo", "tools", "orchestration", "tests")
PROGRAM = """
from flyserve import Client

with Client() as client:
    question = "Karl has 7 books. Now Karl loses 3 books. Next Karl wins 31 books."
    response = client.chat(f"{question} How many books does Karl have now?")
    print(response.text)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels by name of their package."""
    output = tmp_path_factory.mktemp("dist")
    wheels.build_all(output)
    return {path.name.partition("-")[0]: path for path in output.iterdir()}


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packages of our names, which nobody may import."""
    folder = tmp_path_factory.mktemp("application")
    for name in SHADOWS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the application')")
    return folder


def environment(folder: Path, *installed: Path) -> Path:
    """Return the Python of a new environment that has some wheels, and the libraries of this one."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    for wheel in installed:
        ZipFile(wheel).extractall(packages)
    # NOTE: a .pth in these is not followed: the clone itself is not among them.
    (packages / "libraries.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "python"


def run(python: Path, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [python, *arguments], cwd=folder, env={**given, **variables}, capture_output=True, text=True
    )


def test_the_client_works_in_an_application_with_folders_of_our_names(
    built: dict[str, Path], application: Path, tmp_path: Path, deployment: Deployment
) -> None:
    python = environment(tmp_path / "env", built["flyserve"])
    done = run(python, application, "-c", PROGRAM, FLYSERVE_ADDRESS=deployment.router.address)
    assert "Answer: 35" in done.stdout, done.stderr
    done = run(python, application, "-m", "flyserve", "up")
    assert done.returncode == 2
    assert done.stderr == f"error: this command needs the server: pip install flyserve-server=={VERSION}\n"


def test_the_server_works_there_too(built: dict[str, Path], application: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", *built.values())
    serving = ("up", "--single-process", "--port", "0", "--http-port", "0")
    process = subprocess.Popen(
        [python, "-m", "flyserve", *serving], cwd=application, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = next(line.split()[1] for line in process.stdout if line.startswith("ready "))
        assert "Answer: 35" in run(python, application, "-c", PROGRAM, FLYSERVE_ADDRESS=address).stdout
    finally:
        process.terminate()
        process.wait()


def test_two_versions_are_refused_by_both_names(
    built: dict[str, Path], application: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path / "env", *built.values())
    (version,) = (tmp_path / "env" / "lib").glob("python*/site-packages/flyserve_server/VERSION")
    version.write_text("9.9.9\n")
    done = run(python, application, "-m", "flyserve", "up")
    assert done.returncode == 2
    assert f"flyserve is version {VERSION}, flyserve-server is version 9.9.9" in done.stderr


def test_a_package_of_our_name_that_is_imported_already_is_refused(application: Path) -> None:
    code = "import sys; sys.path.insert(0, '.'); sys.modules['router'] = type(sys)('router');"
    code += "sys.modules['router'].__file__ = '/elsewhere/router/__init__.py';"
    code += "from flyserve.server import use_server; use_server()"
    done = subprocess.run([sys.executable, "-c", code], cwd=application, capture_output=True, text=True)
    assert "the package router of /elsewhere/router/__init__.py stands for that of FlyServe" in done.stderr
