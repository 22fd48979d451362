"""Tiny random models and drivers for jobs."""

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flyserve.core.messages import Open
from flyserve.core.request import SamplingParams
from services.engine.base import Scorer
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence
from tests.support.tiny_models import CONTEXT, make_tiny
from tests.support.touchy_engine import TouchyRunner, make_engine


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a tiny model of a kind; each is made once per session."""
    torch.set_num_threads(1)
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            make_tiny(kind).save_pretrained(made[kind])
        return made[kind]

    return make


@pytest.fixture
def folder(model_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a tiny Llama's folder, which a test may change."""
    copy = tmp_path / "model"
    shutil.copytree(model_folder("llama"), copy)
    return copy


def new_sequence(runner: Scorer, sampling: SamplingParams | None = None, **kwargs: Any) -> EngineSequence:
    """Make a sequence without an engine."""
    opening = Open("r", kwargs.pop("prompt_length", 0), sampling or SamplingParams(), **kwargs)
    slot = runner.allocate(CONTEXT)
    assert slot is not None
    return EngineSequence(opening, slot, runner.info.vocab_size, CONTEXT, chunk_tokens=8)


def finish(runner: Scorer, job: Any) -> Any:
    """Run one job to its end, one forward after the other."""
    try:
        item = next(job)
        while True:
            item = job.send(runner.forward([item])[0])
    except StopIteration as stop:
        return stop.value


@pytest.fixture
def drive() -> Callable[[Scorer, Any], Any]:
    return finish


@pytest.fixture
def make_sequence() -> Callable[..., EngineSequence]:
    return new_sequence


@pytest.fixture(params=["thread", "clock"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """A running engine of each kind, over a `TouchyRunner` with 8 places and memory for 1024 tokens."""
    engine = make_engine(request.param, TouchyRunner(8, 1024))
    await engine.start()
    yield engine
    await engine.stop()
