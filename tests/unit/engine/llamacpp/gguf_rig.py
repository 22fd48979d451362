"""Runners of small GGUF files on llama.cpp, and what transformers computes of the same models."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flyserve.core.errors import ModelError
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, KvSlot
from services.engine.llamacpp.runner import LlamaCppRunner
from tests.support.gguf_files import gguf_of
from tests.support.tiny_models import make_tiny

NEAR = 0.03
"""Difference of logits that 16 bits of KV memory may make; those of the tiny model spread over about 10."""
Load = Callable[..., LlamaCppRunner]


def rows(slot: KvSlot, ids: Sequence[int], start: int = 0, outputs: int | None = None) -> ForwardInput:
    tokens = ids[start:]
    num = len(tokens) if outputs is None else outputs
    return ForwardInput(slot, start, tokens, num, SamplingParams(), 1, ids)


def expected(ids: Sequence[int], kind: str = "llama") -> Tensor:
    with torch.inference_mode():
        logits: Tensor = made(kind)(input_ids=torch.tensor([list(ids)])).logits[0]
    return logits


def made(kind: str) -> PreTrainedModel:
    model = make_tiny(kind)
    for layer in model.model.layers if kind == "gemma3" else ():
        layer.self_attn.scaling = 8**-0.5  # llama.cpp knows the one of Gemma's sizes alone
    return model


def file_of(kind: str, folder: Path) -> Path:
    """Write a model; every second layer of a Gemma 3 has a window."""
    pattern = {"gemma3.attention.sliding_window_pattern": 2} if kind == "gemma3" else {}
    return gguf_of(made(kind), folder / "tiny.gguf", **pattern)


def allocated(runner: LlamaCppRunner, num_tokens: int) -> KvSlot:
    slot = runner.allocate(num_tokens)
    assert slot is not None
    return slot


def rejection(load: Load, **changes: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load(**changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)
