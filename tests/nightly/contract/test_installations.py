"""Each installation runs with the packages of its extras alone: client, command line, services, router."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.contract.fakes import save_tokenizer
from tests.support.processes import ROOT, ServiceProcess, service
from tests.support.requirements import BASE, needed

WITH_EXTRAS = "tests.support.with_extras"
SIMULATED = '{"vocab_size": 304, "response_tokens": [12, 12], "base_s": 0.001}'
PIP = (sys.executable, "-m", "pip", "--quiet")
CALLS = """
import asyncio, sys
from flyserve import AsyncClient, Client, InvalidRequest, Mode, SpeculationParams

PLAIN = SpeculationParams(mode=Mode.PLAIN)

async def generate(address):
    async with AsyncClient(address) as client:
        response = await client.generate("the quick", max_new_tokens=8, speculation=PLAIN)
        async with client.stream("the quick", max_new_tokens=8, speculation=PLAIN) as stream:
            return response.text, "".join([chunk.text async for chunk in stream])

with Client(sys.argv[1]) as client:
    response = client.generate("the quick", max_new_tokens=8, speculation=PLAIN)
    with client.stream("the quick", max_new_tokens=8, speculation=PLAIN) as stream:
        texts = {response.text, "".join(chunk.text for chunk in stream), *asyncio.run(generate(sys.argv[1]))}
    assert len(texts) == 1 and response.text, texts
    assert client.info().target.architecture == "simulated"
    try:
        client.generate("x", max_new_tokens=100_000_000)
    except InvalidRequest as error:
        print(error.violations[0].field)
"""


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A simulated deployment; each process finds only the packages of its extra."""
    model = str(save_tokenizer(tmp_path_factory.mktemp("model")))
    simulated = ("--simulated", SIMULATED)
    with (
        service(WITH_EXTRAS, "service", "services.lookup") as sub_drafter,
        service(WITH_EXTRAS, "service", "services.target", *simulated) as target,
        service(
            WITH_EXTRAS, "service", "services.drafter", *simulated, "--sub-drafter", sub_drafter.address
        ) as drafter,
        service(
            *(WITH_EXTRAS, "router", "router", "--model", model, "--grpc-port", "0", "--http-port", "0"),
            *("--target", target.address, "--drafter", drafter.address),
        ) as router,
    ):
        yield router


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new virtual environment with the project and its base dependencies."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    install = (*PIP, "--python", str(python), "install", "--constraint", str(ROOT / "constraints.txt"))
    subprocess.run([*install, *BASE], check=True)
    # NOTE: from a copy: setuptools writes its build folder next to the sources.
    subprocess.run([*install, "--no-deps", str(sources(folder / "sources"))], check=True)
    return python


def sources(folder: Path) -> Path:
    """Copy the files that make the distribution."""
    patterns = ("*.py", "pyproject.toml", "README.md", "LICENSE")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def run(*command: str | Path, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that finds no code of the repository by itself."""
    paths = ("PYTHONPATH", "PYTHONSAFEPATH")
    inherited = {name: value for name, value in os.environ.items() if name not in paths}
    return subprocess.run(
        command, cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, timeout=600
    )


def test_a_client_calls_a_router_with_the_base_dependencies_alone(
    bare_python: Path, router: ServiceProcess, tmp_path: Path
) -> None:
    packages = sysconfig.get_path("purelib", vars={"base": str(bare_python.parents[1])})
    installed = {canonicalize_name(each.name) for each in distributions(path=[packages])}
    assert installed == needed(BASE) | {"flyserve"}
    done = run(bare_python, "-c", CALLS, router.address, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "max_new_tokens\n"), done.stderr


def test_the_command_line_names_the_extra_that_is_missing(bare_python: Path, tmp_path: Path) -> None:
    done = run(bare_python.with_name("flyserve"), "info", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("is not installed: pip install 'flyserve[cli]'\n")
    assert done.stderr.count("\n") == 1


def test_the_command_line_generates_with_its_own_extra_alone(router: ServiceProcess) -> None:
    flags = ("generate", "the quick", "--max-new-tokens", "8", "--mode", "exact")
    command = (sys.executable, "-m", WITH_EXTRAS, "cli", "flyserve", *flags)
    done = run(*command, cwd=ROOT, FLYSERVE_ADDRESS=router.address)
    assert done.returncode == 0 and done.stderr.startswith("8 tokens | "), done.stderr
