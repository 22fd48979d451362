"""Images that the container engine of this machine builds; without one, every test is skipped in one line."""

import shutil
import subprocess

import pytest

from tests.images.engine import Engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    for name in ("docker", "podman"):
        if shutil.which(name) and subprocess.run((name, "info"), capture_output=True).returncode == 0:
            return Engine(name)
    pytest.skip("no container engine works here: install docker or podman")


@pytest.fixture(scope="session")
def slim(engine: Engine) -> str:
    return engine.build("slim")


@pytest.fixture(scope="session")
def cpu(engine: Engine) -> str:
    return engine.build("cpu")
