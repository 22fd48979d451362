"""Cost of a round on vLLM: the rows that it computes."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.processes import ROOT

BLOCK, DRAFT, VOCAB_SIZE = 32, 15, 640


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("long")
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB_SIZE, max_position_embeddings=16_384, **shape, **heads)
    LlamaForCausalLM(config).save_pretrained(folder)
    script = str(Path(__file__).with_name("measure.py"))
    found = subprocess.run(
        [os.environ["VLLM_PYTHON"], script, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return figures


@pytest.mark.parametrize("length", ["2000", "8000"])
def test_a_round_computes_at_most_a_block_its_draft_and_one_row(
    measured: dict[str, Any], length: str
) -> None:
    assert measured[length] <= BLOCK + DRAFT + 1


def test_an_engine_measures_what_its_forwards_cost(measured: dict[str, Any]) -> None:
    assert measured["costs"]["decode_s"] > 0 and measured["costs"]["verify_s"] > 0
