"""The demo pair on vLLM and on the builtin engine, in fp32."""

import os
from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaForCausalLM

from demo.tasks import Task, load_tasks
from tests.nightly.vllm.vllm_rig import vllm_deployment
from tests.support.processes import TARGET_MODEL, Deployment, demo_deployment

NUM_PROBLEMS = int(os.environ.get("FLYSERVE_VLLM_PROBLEMS", "20"))
"""Held-out problems per comparison; 100 for the full proof."""


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
