"""Count the operators of a forward, at the depth of a real model with almost no arithmetic."""

from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fly.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.forward.attention import RaggedForward
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.fused import FusedForward
from services.engine.forward.linears import PlainLinear
from services.engine.memory.kv_cache import KvCache


def deep_model(num_layers: int) -> LlamaForCausalLM:
    """Return a model with this number of tiny layers; two query heads share a KV head."""
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=64,
        max_position_embeddings=2048,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def count_operators(call: Callable[[], object]) -> int:
    """Return the number of ATen calls of `call`, nested ones included, as torch's profiler records them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return sum(event.name.startswith("aten::") for event in profile.events())


@torch.inference_mode()
def operators_of_forward(
    kind: str, kv_cache: KvCache, num_layers: int, num_rows: int, starts: list[int]
) -> int:
    """Return the ATen calls of one forward of new rows after `starts` positions of each sequence."""
    model = deep_model(num_layers)
    fused = kind == "fused"
    forward = FusedForward(model, kv_cache, PlainLinear) if fused else RaggedForward(model, kv_cache)
    earlier, batch = [], []
    for start in starts:
        slot = kv_cache.allocate(start + num_rows)
        assert slot is not None
        history = [position % 60 for position in range(start + num_rows)]
        if start:
            earlier.append(_input(slot, 0, history[:start]))
        batch.append(_input(slot, start, history[start:]))
    if earlier:
        forward(ForwardBatch(earlier))
    return count_operators(lambda: forward(ForwardBatch(batch)))


def _input(slot: int, start: int, tokens: list[int]) -> ForwardInput:
    return ForwardInput(slot, start, tokens, len(tokens), SamplingParams(), 0, tokens)
