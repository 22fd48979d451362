"""A real tiny model through engine, sequence and runner: drafts, rollback, batches, reused prefixes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flyserve.core.messages import Open, Role
from flyserve.core.sequence import SequenceMirror, TokenSequence, common_length
from services.engine.base import Job
from services.engine.config import LlamaCppConfig, ModelConfig
from services.engine.engine import Engine
from services.engine.factory import build_engine
from services.engine.loading.model import load_model
from tests.support.gguf_files import gguf_of
from tests.support.tiny_models import make_tiny


@pytest.fixture(params=["torch", "llamacpp"])
async def engine(
    request: pytest.FixtureRequest, model_folder: Callable[[str], Path], tmp_path: Path
) -> AsyncIterator[Engine]:
    """A running engine over each runner of whole models, with the same weights."""
    size: dict[str, Any] = {"max_sequences": 6, "kv_tokens": 512, "max_batch_tokens": 32}
    if request.param == "torch":
        engine = build_engine(
            ModelConfig(role=Role.TARGET, model=model_folder("llama"), dtype="float32", **size)
        )
    else:
        file = gguf_of(make_tiny("llama"), tmp_path / "llama.gguf")
        engine = build_engine(LlamaCppConfig(role=Role.TARGET, model=file, **size))
    await engine.start()
    yield engine
    await engine.stop()


def greedy(folder: Path, prompt: list[int], num_tokens: int) -> list[int]:
    model = load_model(folder, "float32").model
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def nothing() -> Job[None]:
    return
    yield


async def speculate(engine: Engine, prompt: list[int], drafts: list[int], num_tokens: int) -> list[int]:
    """Decode by exact speculation over the engine, with these (bad and good) drafts."""
    known, view = TokenSequence(prompt), SequenceMirror()
    sequence = await engine.open(Open("r", len(prompt)))
    while len(known) < len(prompt) + num_tokens:
        place = len(known) - len(prompt)
        proposal = drafts[place : place + 4]
        sequence.apply(view.update(known, proposal, len(known)))
        scores = await engine.run(sequence.score(len(proposal) + 1))
        known.extend(scores.choices[: common_length(proposal, scores.choices) + 1])
    engine.close(sequence)
    return known.ids[len(prompt) : len(prompt) + num_tokens]


async def test_speculation_over_the_engine_is_greedy_decoding(
    engine: Engine, model_folder: Callable[[str], Path]
) -> None:
    prompts = [[5, 6, 7], [9] * 40, [11, 12]]
    expected = [greedy(model_folder("llama"), prompt, 12) for prompt in prompts]
    drafts = [[token if index % 3 else 1 for index, token in enumerate(tokens)] for tokens in expected]
    answers = await asyncio.gather(
        *(speculate(engine, prompt, proposal, 12) for prompt, proposal in zip(prompts, drafts, strict=True))
    )
    assert answers == expected
    await engine.run(nothing())  # waits until the sequences are closed
    assert engine.load().kv_used == 0
    # What the closed sequences left is read back, and a draft is scored over it.
    again = await speculate(engine, prompts[1], drafts[1], 12)
    assert again == expected[1] and engine.load().reused_tokens >= 32


async def test_every_engine_of_a_process_computes_with_its_own_threads(
    model_folder: Callable[[str], Path],
) -> None:
    def config(threads: int) -> ModelConfig:
        return ModelConfig(role=Role.TARGET, model=model_folder("llama"), kv_tokens=512, threads=threads)

    def count_threads() -> Job[int]:
        return torch.get_num_threads()
        yield

    engines = [build_engine(config(threads)) for threads in (2, 1)]
    for engine in engines:
        await engine.start()
    counts = [await engine.run(count_threads()) for engine in engines]
    for engine in engines:
        await engine.stop()
    assert counts == [2, 1]
