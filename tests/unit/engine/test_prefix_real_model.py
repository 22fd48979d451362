"""A real tiny model: a shared prefix is computed once, and the scores do not change."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from fly.messages import Open, Role, StepTimes
from fly.sequence import SequenceUpdate
from services.engine.base import Scores
from services.engine.config import ModelConfig
from services.engine.engine import Engine
from services.engine.factory import build_engine

CONTEXT = 640
SHARED = [(7 * index) % 90 + 3 for index in range(512)]
OWN = [[5, 9, 31, 4, 8, 77, 20, 21], [6, 60, 2, 13, 50]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a Llama with a longer context."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
    )
    made = tmp_path_factory.mktemp("long_llama")
    LlamaForCausalLM(config).save_pretrained(made)
    return made


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[Engine]:
    config = ModelConfig(
        role=Role.TARGET, model=folder, dtype="float32", kv_tokens=4096, max_batch_tokens=256
    )
    engine = build_engine(config)
    await engine.start()
    yield engine
    await engine.stop()


async def scored(engine: Engine, ids: list[int], salt: str = "") -> tuple[Scores, StepTimes]:
    """Return the scores of the last four positions of a new sequence."""
    sequence = await engine.open(Open("r", len(ids), cache_salt=salt))
    sequence.apply(SequenceUpdate(1, 0, tuple(ids), len(ids) - 3, 0))
    answer = await engine.run_timed(sequence.score(4))
    engine.close(sequence)
    return answer


async def test_a_prefix_read_back_equals_transformers(engine: Engine, folder: Path) -> None:
    from services.engine.loading.model import load_model

    model = load_model(folder, "float32").model
    ids = SHARED + OWN[1]
    await scored(engine, SHARED + OWN[0])
    answered, times = await scored(engine, ids)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -4:].argmax(-1).tolist()
    assert times.reused_tokens == 512 and list(answered.choices) == expected
