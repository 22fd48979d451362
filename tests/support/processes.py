"""Services as child processes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[2]
TARGET_MODEL = ROOT / "demo" / "models" / "target"
DRAFTER_MODEL = ROOT / "demo" / "models" / "drafter"


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """A running service: its address, its process, and the URLs of its other servers."""

    address: str
    process: subprocess.Popen[str]
    urls: tuple[str, ...] = ()

    def kill(self) -> None:
        """Kill it, like a crash."""
        self.process.kill()
        self.process.wait()


@contextmanager
def service(module: str, *flags: str, python: str = sys.executable) -> Iterator[ServiceProcess]:
    """Run `python -m module flags`; enter the block when it is ready, end the process after the block."""
    command = [python, "-m", module, *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=log
        )
        try:
            address, *urls = _ready_addresses(process, log)
            yield ServiceProcess(address, process, tuple(urls))
        finally:
            process.terminate()
            try:
                process.communicate(timeout=600)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def _ready_addresses(process: subprocess.Popen[str], log: TextIO) -> list[str]:
    """Read the line that a service prints when it is ready."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            return line.split()[1:]
    log.seek(0)
    raise AssertionError(f"the service ended before it was ready: {log.read()}")


@dataclass(frozen=True, slots=True)
class Deployment:
    """The demo pair behind a router, without Ray."""

    router: ServiceProcess
    targets: list[ServiceProcess]
    drafter: ServiceProcess
    sub_drafter: ServiceProcess


@contextmanager
def demo_deployment(
    num_targets: int = 1, dtype: str = "float32", kv_tokens: int = 65536
) -> Iterator[Deployment]:
    """Start every service of the demo pair as its own process."""
    with ExitStack() as stack:
        sub_drafter = stack.enter_context(service("services.lookup"))
        served = ("--dtype", dtype, "--threads", "1", "--kv-tokens", str(kv_tokens))
        help_from = ("--sub-drafter", sub_drafter.address)
        drafting = ("services.drafter", "--model", str(DRAFTER_MODEL), *served, *help_from)
        verifying = ("services.target", "--model", str(TARGET_MODEL), *served)
        # NOTE: at the same time: each takes seconds to import its libraries, in one thread.
        with ThreadPoolExecutor() as pool:
            commands = [drafting, *[verifying] * num_targets]
            drafter, *targets = pool.map(lambda command: stack.enter_context(service(*command)), commands)
        router = stack.enter_context(router_of(targets, drafter))
        yield Deployment(router, targets, drafter, sub_drafter)


def one_more_target() -> AbstractContextManager[ServiceProcess]:
    """Start another target of the demo pair, in fp32, for a test that kills it."""
    return service("services.target", "--model", str(TARGET_MODEL), "--dtype", "float32", "--threads", "1")


@contextmanager
def router_of(
    targets: Iterable[ServiceProcess], drafter: ServiceProcess | None = None, *more: str
) -> Iterator[ServiceProcess]:
    """Start a router for the demo's target in front of running services; it waits for every draft.

    `more` are further flags.

    NOTE: the output of `fly` depends on where drafts are cut, so it is reproducible only without late drafts.
    """
    places = [flag for target in targets for flag in ("--target", target.address)]
    helper = () if drafter is None else ("--drafter", drafter.address)
    flags = ("--grpc-port", "0", "--http-port", "0", "--draft-patience", "1000000")
    with service("router", "--model", str(TARGET_MODEL), *places, *helper, *flags, *more) as router:
        yield router
