"""Tiny random models and drivers for jobs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fly.messages import Open
from fly.request import SamplingParams
from services.engine.base import Runner
from services.engine.sequence import EngineSequence
from tests.support.tiny_models import CONTEXT, make_tiny


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny model of a kind, made once."""
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
    """Of a tiny Llama, to be spoilt."""
    copy = tmp_path / "model"
    shutil.copytree(model_folder("llama"), copy)
    return copy


def new_sequence(runner: Runner, sampling: SamplingParams | None = None, **kwargs: Any) -> EngineSequence:
    """A sequence outside of any engine."""
    opening = Open("r", kwargs.pop("prompt_length", 0), sampling or SamplingParams(), **kwargs)
    slot = runner.allocate(CONTEXT)
    assert slot is not None
    return EngineSequence(opening, slot, runner.info.vocab_size, CONTEXT, chunk_tokens=8)


def finish(runner: Runner, job: Any) -> Any:
    """Runs one job to its end, one forward after the other."""
    try:
        work = next(job)
        while True:
            work = job.send(runner.forward([work])[0])
    except StopIteration as stop:
        return stop.value


@pytest.fixture
def drive() -> Callable[[Runner, Any], Any]:
    return finish


@pytest.fixture
def make_sequence() -> Callable[..., EngineSequence]:
    return new_sequence
