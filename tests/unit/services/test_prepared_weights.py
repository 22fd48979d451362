"""With real weights: drafts on branches are those of the sequence itself, whatever the layout of KV."""

import asyncio
import math
from dataclasses import dataclass, field, replace

import pytest
import torch

from fly.messages import DraftStep, Open, Role
from fly.request import SamplingParams
from fly.sequence import SequenceMirror, TokenSequence, common_length
from flyserve.bench.tasks import load_tasks, render
from router.text.tokenizer import Tokenizer
from services.drafter.ahead import DraftingLimits
from services.drafter.drafting import SubDrafterSession
from services.drafter.session import DraftSession
from services.engine.config import Dtype, ModelConfig
from services.engine.engine import Engine
from services.engine.factory import build_engine
from services.engine.forward import torch_runner
from services.engine.memory.kv_cache import KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache
from services.engine.sequence import EngineSequence
from tests.support.processes import DRAFTER_MODEL, TARGET_MODEL

pytestmark = pytest.mark.slow

TEXT = render(load_tasks(1)[0].prompt)
GREEDY = SamplingParams()
SAMPLING = {
    "greedy": GREEDY,
    "sampled": replace(GREEDY, temperature=1.0, seed=5),
    "penalized": replace(GREEDY, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.2),
}
NUM_DRAFTS, ROUNDS = 6, 12
ALONE, PREPARED = DraftingLimits(), DraftingLimits(ahead_sequences=math.inf, branches=3)


@dataclass
class Played:
    """The drafts of a response, and the tokens of them that were ready."""

    drafts: list[tuple[int, ...]] = field(default_factory=list)
    ready: int = 0


async def build(role: Role) -> Engine:
    folder = TARGET_MODEL if role is Role.TARGET else DRAFTER_MODEL
    config = ModelConfig(role=role, model=folder, dtype=Dtype.FLOAT32, max_sequences=6, kv_tokens=4096)
    engine = build_engine(config)
    await engine.start()
    return engine


async def idle_forwards(engine: Engine, pace: EngineSequence) -> None:
    """Wait for as many forwards of idle jobs as a draft has tokens, which other idle jobs share."""
    pace.truncate(0)
    pace.extend([5])
    jobs = engine.run_when_idle(pace.decode(NUM_DRAFTS))
    while not jobs.are_done:
        await asyncio.sleep(0)
    await jobs.cancel()


async def play(drafter: Engine, target: Engine, limits: DraftingLimits, sampling: SamplingParams) -> Played:
    """Decode with the pair in mode exact; every round lasts until the drafter has nothing more to do."""
    prompt, played, mirror = Tokenizer.load(TARGET_MODEL).encode(TEXT), Played(), SequenceMirror()
    opening, ids = Open("test", len(prompt), sampling), TokenSequence(prompt)
    checked, sequence = await target.open(opening), await drafter.open(opening)
    pace = await drafter.open(Open("pace", 1))
    session = DraftSession(drafter, sequence, SubDrafterSession(), limits)
    try:
        for _ in range(ROUNDS):
            draft = await session.step(DraftStep(mirror.update(ids, (), len(ids)), NUM_DRAFTS))
            mirror.append(draft.tokens)
            played.drafts.append(draft.tokens)
            played.ready += draft.drafted_ahead
            checked.truncate(common_length(checked.tokens.ids, ids.ids))
            checked.extend((*ids.ids[len(checked) :], *draft.tokens))
            choices = (await target.run(checked.score(len(draft.tokens) + 1))).choices
            ids.extend(choices[: common_length(draft.tokens, choices) + 1])
            await idle_forwards(drafter, pace)
    finally:
        await session.close()
        drafter.close(pace)
        drafter.close(sequence)
        target.close(checked)
    return played


@pytest.mark.parametrize("layout", ["contiguous", "blocks"])
async def test_prepared_drafts_are_the_same_drafts(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(kv_tokens: int, max_sequences: int, dtype: torch.dtype | None, device: str) -> KvCache:
        return PagedKvCache(kv_tokens, max_sequences, dtype)

    if layout == "blocks":
        monkeypatch.setattr(torch_runner, "make_kv_cache", blocks)
        monkeypatch.setattr(torch_runner, "create_kv_memory", lambda *_: None)
    drafter, target = await build(Role.DRAFTER), await build(Role.TARGET)
    try:
        ready = dict[str, int]()
        for name, sampling in SAMPLING.items():
            alone = await play(drafter, target, ALONE, sampling)
            prepared = await play(drafter, target, PREPARED, sampling)
            assert prepared.drafts == alone.drafts, name
            ready[name] = prepared.ready
            assert alone.ready == 0
        assert min(ready.values()) > 0
    finally:
        await drafter.stop()
        await target.stop()
