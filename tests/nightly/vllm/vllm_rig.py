"""The demo pair on the real vLLM, in fp32; `VLLM_PYTHON` is an interpreter that has it."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tests.support.processes import DRAFTER_MODEL, TARGET_MODEL, ServiceProcess, router_of, service


def vllm_service(tier: str, model: Path, *flags: str) -> AbstractContextManager[ServiceProcess]:
    """Start a target or a drafter on vLLM, in fp32."""
    fixed = ("--engine", "vllm", "--model", str(model), "--dtype", "float32", "--threads", "1")
    return service(f"services.{tier}", *fixed, "--max-sequences", "16", *flags, python=vllm_python())


def vllm_python() -> str:
    """Return the interpreter that has vLLM."""
    return os.environ["VLLM_PYTHON"]


@contextmanager
def vllm_deployment(num_targets: int) -> Iterator[tuple[ServiceProcess, list[ServiceProcess]]]:
    """Start the demo pair on vLLM, with every level of drafting; yield the router and the targets."""
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        sub_drafter = stack.enter_context(service("services.lookup"))
        levels = ("--sub-drafter", sub_drafter.address, "--draft-ahead", "on")
        tiers: list[tuple[str, Path, *tuple[str, ...]]] = [("drafter", DRAFTER_MODEL, *levels)]
        tiers += [("target", TARGET_MODEL)] * num_targets
        drafter, *targets = pool.map(lambda tier: stack.enter_context(vllm_service(*tier)), tiers)
        yield stack.enter_context(router_of(targets, drafter)), targets
