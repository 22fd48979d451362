"""A real tiny model through engine, sequence and runner: drafts, rollback, batches, eviction by size."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import torch

from fly.messages import Open, Role
from fly.tokens import PeerView, TokenSequence
from services.engine.base import Job
from services.engine.engine import Engine
from services.engine.factory import EngineConfig, build_engine
from services.engine.loading import load_model


@pytest.fixture
async def engine(model_folder: Callable[[str], Path]) -> AsyncIterator[Engine]:
    config = EngineConfig(
        Role.TARGET, model_folder("llama"), "float32", max_sequences=6, kv_tokens=512, max_batch_tokens=32
    )
    engine = build_engine(config)
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
    """Exact speculation with the given (bad and good) drafts over the engine."""
    known, view = TokenSequence(prompt), PeerView()
    sequence = await engine.open(Open("r", len(prompt)))
    while len(known) < len(prompt) + num_tokens:
        place = len(known) - len(prompt)
        guess = drafts[place : place + 4]
        sequence.apply(view.update(known, guess, len(known)))
        scores = await engine.run(sequence.score(len(guess) + 1))
        matched = next(
            (i for i, pair in enumerate(zip(guess, scores.choices, strict=False)) if pair[0] != pair[1]),
            len(guess),
        )
        known.extend(scores.choices[: matched + 1])
    engine.close(sequence)
    return known.ids[len(prompt) : len(prompt) + num_tokens]


async def test_speculation_over_the_engine_is_greedy_decoding(
    engine: Engine, model_folder: Callable[[str], Path]
) -> None:
    prompts = [[5, 6, 7], [9] * 40, [11, 12]]
    expected = [greedy(model_folder("llama"), prompt, 12) for prompt in prompts]
    drafts = [[token if index % 3 else 1 for index, token in enumerate(tokens)] for tokens in expected]
    answers = await asyncio.gather(
        *(speculate(engine, prompt, guess, 12) for prompt, guess in zip(prompts, drafts, strict=True))
    )
    assert answers == expected
    await engine.run(nothing())  # the sequences were closed before it
    assert engine.load().kv_used == 0
