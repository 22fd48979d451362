"""A simulated target and a router, each a process of its own."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.overload.plan import Plan
from orchestration.local.processes import ServiceProcess, service_process

ROOT = Path(__file__).resolve().parent.parent.parent
_TOKENIZER = ROOT / "demo" / "models" / "target"
_START_TIMEOUT_S, _GRACE_S = 60.0, 20.0


@contextmanager
def running(plan: Plan) -> Iterator[ServiceProcess]:
    """The router, which runs while the block does.

    Raises:
        ConfigError: A process ended, with its last line.
        NotReady: One did not serve in time.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with TemporaryDirectory(prefix="flyserve-") as folder, ExitStack() as stack:

        def start(*command: str) -> ServiceProcess:
            made = service_process(command, environment, Path(folder), _START_TIMEOUT_S, _GRACE_S)
            return stack.enter_context(made)

        sizes = ("--max-sequences", str(plan.places), "--kv-tokens", "65536")
        target = start("services.target", "--simulated", plan.simulated, *sizes)
        limits = ("--max-concurrent", str(plan.places), "--max-queued", str(plan.queue))
        where = ("--model", str(_TOKENIZER), "--target", target.address, "--grpc-port", "0")
        yield start("router", *where, *limits)
