"""The demo pair on vLLM and on the builtin engine, in fp32; `VLLM_PYTHON` is an interpreter with vLLM."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from demo.tasks import Task, load_tasks
from tests.support.processes import (
    DRAFTER_MODEL,
    TARGET_MODEL,
    Deployment,
    ServiceProcess,
    demo_deployment,
    router_of,
    service,
)

NUM_PROBLEMS = int(os.environ.get("FLYSERVE_VLLM_PROBLEMS", "20"))
"""Held-out problems per comparison; 100 for the full proof."""


def vllm_service(tier: str, model: Path, *flags: str) -> AbstractContextManager[ServiceProcess]:
    """Start a target or a drafter on vLLM, in fp32."""
    fixed = ("--engine", "vllm", "--model", str(model), "--dtype", "float32", "--threads", "1")
    return service(f"services.{tier}", *fixed, "--max-sequences", "16", *flags, python=vllm_python())


def vllm_python() -> str:
    return os.environ["VLLM_PYTHON"]


@contextmanager
def vllm_deployment(num_targets: int) -> Iterator[tuple[ServiceProcess, list[ServiceProcess]]]:
    """Start the demo pair on vLLM; yield the router and the targets."""
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        tiers = [("drafter", DRAFTER_MODEL), *[("target", TARGET_MODEL)] * num_targets]
        drafter, *targets = pool.map(lambda tier: stack.enter_context(vllm_service(*tier)), tiers)
        yield stack.enter_context(router_of(targets, drafter)), targets


@pytest.fixture(scope="session")
def problems() -> list[Task]:
    return load_tasks(NUM_PROBLEMS)


@pytest.fixture(scope="session")
def router() -> Iterator[str]:
    """Return the address of a router in front of the pair on vLLM."""
    with vllm_deployment(num_targets=1) as (router, _):
        yield router.address


@pytest.fixture(scope="session")
def builtin() -> Iterator[Deployment]:
    with demo_deployment() as deployment:
        yield deployment


@pytest.fixture(scope="session")
def reference() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    return LlamaForCausalLM.from_pretrained(TARGET_MODEL, dtype=torch.float32).eval()
