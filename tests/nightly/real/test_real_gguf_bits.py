"""`deterministic: true` on llama.cpp: drafts, other sequences and full memory change no response at all."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from demo.real.fetch import GEMMA3, SMOLLM2, gguf_file, source_file
from flyserve.core.messages import Open, Role
from flyserve.core.sequence import SequenceMirror, TokenSequence, common_length
from services.common.model_source import model_folder
from services.engine.config import LlamaCppConfig
from services.engine.engine import Engine
from services.engine.factory import build_engine
from tests.nightly.real.prompts import PROMPTS
from tests.nightly.real.test_real_gguf import here

pytestmark = pytest.mark.timeout(3600)

FILES = {
    "q4_1": (SMOLLM2, source_file(SMOLLM2)),
    "f16": (SMOLLM2, gguf_file(SMOLLM2)),
    "q4_k_m": (GEMMA3, source_file(GEMMA3)),
}
LENGTH = 40
DRAFTED = 4
ASKED = PROMPTS[:20]
Ids = list[int]


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest) -> Path:
    return here(*FILES[request.param])


def test_no_response_differs_under_load_and_memory_pressure(file: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_folder(file) / "tokenizer.json"))
    prompts = [tokenizer.encode(f"Answer at length. Question: {text} Answer:").ids for text in ASKED]
    longest = max(map(len, prompts)) + LENGTH + DRAFTED
    plain = asyncio.run(responses(file, prompts, [[]] * len(prompts), at_once=1, kv_tokens=4096))
    chance = random.Random(1)
    drafts = [
        [token if chance.random() < 0.75 else chance.randrange(20, 500) for token in ids] for ids in plain
    ]
    for at_once, kv_tokens in ((5, 4096), (8, 4 * longest)):
        exact = asyncio.run(responses(file, prompts, drafts, at_once, kv_tokens))
        assert exact == plain


async def responses(
    file: Path, prompts: Sequence[Ids], drafts: Sequence[Ids], at_once: int, kv_tokens: int
) -> list[Ids]:
    keys = {"threads": 1, "max_sequences": 16, "kv_tokens": kv_tokens, "deterministic": True}
    engine = build_engine(LlamaCppConfig(role=Role.TARGET, model=file, **keys))
    await engine.start()
    gate = asyncio.Semaphore(at_once)

    async def one(prompt: Ids, draft: Ids) -> Ids:
        async with gate:
            return await response(engine, prompt, draft)

    try:
        return list(await asyncio.gather(*map(one, prompts, drafts)))
    finally:
        await engine.stop()


async def response(engine: Engine, prompt: Ids, draft: Ids) -> Ids:
    """Return the tokens that the target chooses when tokens of `draft` are proposed in their places."""
    known, view = TokenSequence(prompt), SequenceMirror()
    sequence = await engine.open(Open("r", len(prompt), cache_salt="s"))
    while (place := len(known) - len(prompt)) < LENGTH:
        proposal = draft[place : place + DRAFTED]
        sequence.apply(view.update(known, proposal, len(known)))
        scores = await engine.run(sequence.score(len(proposal) + 1))
        known.extend(scores.choices[: common_length(proposal, scores.choices) + 1])
    engine.close(sequence)
    return list(known.ids[len(prompt) : len(prompt) + LENGTH])
