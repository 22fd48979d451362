from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from flyserve.core.messages import Role
from services.engine.base import ForwardInput, Scores
from services.engine.config import ModelConfig
from services.engine.forward.torch_runner import load_runner
from services.engine.head.head_scorer import HeadScorer
from services.engine.loading.forward_costs import measure_forward_s, weight_bytes

ModelFolder = Callable[[str], Path]


class Scorer(nn.Module):
    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.middle = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
        self.head = nn.Linear(4, 10, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_forward_reads_all_weights_except_an_untied_embedding(is_tied: bool) -> None:
    assert weight_bytes(Scorer(is_tied)) == 4 * 4 * 2 + 4 * 10 * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_runner_reports_the_bytes_that_it_reads(model_folder: ModelFolder, dtype: str) -> None:
    folder = model_folder("llama_odd")
    model = LlamaForCausalLM.from_pretrained(folder)
    table = model.model.embed_tokens.weight.numel()
    runner = load_runner(
        ModelConfig(model=folder, role=Role.TARGET, dtype=dtype, kv_tokens=256, max_sequences=1)
    )
    weights = sum(weight.numel() for weight in model.parameters()) - table
    assert runner.weight_bytes == weights * (4 if dtype == "float32" else 2)


def test_a_measurement_frees_its_slot(model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(
        model=model_folder("llama"), role=Role.TARGET, dtype="float32", kv_tokens=64, max_sequences=1
    )
    runner = HeadScorer(load_runner(config))
    assert measure_forward_s(runner) > 0 and runner.kv_used == 0

    def broken(self: HeadScorer, batch: Sequence[ForwardInput]) -> list[Scores]:
        raise ValueError("no kernel")

    monkeypatch.setattr(HeadScorer, "forward", broken)
    with pytest.raises(ValueError, match="no kernel"):
        measure_forward_s(runner)
    assert runner.kv_used == 0 and runner.allocate(1) is not None
    with pytest.raises(RuntimeError, match="no slot"):
        measure_forward_s(runner)
