"""The images as they are built: small, consistent, without rights, and ended by SIGTERM."""

import signal
import time

import pytest

from flyserve.core.version import VERSION
from tests.images.engine import HANG_S, Engine, Failed

SLIM_BYTES, CPU_BYTES = 450e6, 1.5e9
ROUTER = ("flyserve", "router", "demo/deployment.yaml", "--registry", "127.0.0.1:1", "--port", "0")
SERVE = (
    *("flyserve", "serve", "demo/models/target", "--draft", "demo/models/drafter", "--dtype", "float32"),
    *("--host", "127.0.0.1", "--allow-anyone"),
)

HEARS = (
    *("python", "-c"),
    "caught = next(line for line in open('/proc/1/status') if line.startswith('SigCgt')).split()[1]\n"
    f"raise SystemExit(not int(caught, 16) >> {signal.SIGTERM - 1} & 1)",
)
"""Succeeds once process 1 has a handler for SIGTERM, for which it has no default action."""


def wait_for(engine: Engine, container: str, *command: str) -> None:
    """Wait until a command in the container succeeds."""
    deadline = time.monotonic() + HANG_S
    while True:
        try:
            engine.execute(container, *command)
            return
        except Failed:
            assert time.monotonic() < deadline
            time.sleep(0.5)


@pytest.fixture(params=["slim", "cpu"])
def image(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_an_image_has_the_command_of_this_version(image: str, engine: Engine) -> None:
    assert "serve" in engine.run(image, "flyserve", "--help")
    assert VERSION in engine.run(image, "flyserve", "--version")


def test_the_packages_of_an_image_fit_together(image: str, engine: Engine) -> None:
    assert "No broken requirements" in engine.run(image, "pip", "check")


def test_an_image_runs_without_rights_and_writes_to_tmp_alone(image: str, engine: Engine) -> None:
    code = "import os; print(os.getuid(), os.getgid()); open('/tmp/x', 'w')"
    assert engine.run(image, "python", "-c", code).split() == ["10001", "10001"]
    assert "CapEff:\t0000000000000000" in engine.run(image, "cat", "/proc/self/status")
    for path in ("/app/x", "/home/flyserve/x"):
        with pytest.raises(Failed, match="Read-only file system"):
            engine.run(image, "python", "-c", f"open({path!r}, 'w')")


def test_a_router_that_waits_for_its_target_ends_at_sigterm(image: str, engine: Engine) -> None:
    with engine.running(image, *ROUTER, "--start-timeout-s", "3600") as container:
        wait_for(engine, container, *HEARS)
        assert engine.stopped(container, 600) in (0, 143)


def test_a_deployment_that_starts_or_serves_ends_at_sigterm(cpu: str, engine: Engine) -> None:
    ask = (
        "flyserve",
        "generate",
        "Karl has 7 books.",
        "--max-new-tokens",
        "4",
        "--address",
        "127.0.0.1:50051",
    )
    with engine.running(cpu, *SERVE) as container:
        wait_for(engine, container, *ask)
        assert engine.stopped(container, 600) in (0, 143)
    with engine.running(cpu, *SERVE) as container:
        wait_for(engine, container, *HEARS)
        assert engine.stopped(container, 600) in (0, 143)


def test_images_are_small(slim: str, cpu: str, engine: Engine) -> None:
    assert engine.size(slim) <= SLIM_BYTES
    if engine.run(cpu, "python", "-c", "import torch; print(torch.version.cuda)").strip() == "None":
        assert engine.size(cpu) <= CPU_BYTES
