"""The demo pair behind a router, in fp32, every service in its own process."""

import os
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page
from transformers import LlamaForCausalLM

from demo.tasks import Task, load_tasks
from tests.support.browser import chromium, opened
from tests.support.playground import WIDE, ready
from tests.support.processes import TARGET_MODEL, Deployment, demo_deployment

NUM_PROBLEMS = int(os.environ.get("FLYSERVE_E2E_PROBLEMS", "24"))
"""Held-out problems per comparison; 300 for the full proof."""


@pytest.fixture(scope="session")
def problems() -> list[Task]:
    return load_tasks(NUM_PROBLEMS)


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    with demo_deployment(num_targets=2) as deployment:
        yield deployment


@pytest.fixture(scope="session")
def target() -> LlamaForCausalLM:
    # Two threads that wait for each other on a busy machine take several times as long as one.
    torch.set_num_threads(1)
    return LlamaForCausalLM.from_pretrained(TARGET_MODEL, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def url(deployment: Deployment) -> str:
    """Return the URL of the playground."""
    return f"{deployment.router.urls[0]}/"


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """Return the loaded playground page."""
    with opened(browser, url, viewport=WIDE) as page:
        ready(page)
        yield page
