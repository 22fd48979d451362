"""Cost of one forward of each model in transformers' own classes."""

from __future__ import annotations

import statistics
import time

import torch
from transformers import DynamicCache, LlamaForCausalLM

_CONTEXT = 200
_REPEATS = 150


@torch.inference_mode()
def forward_ms(model: LlamaForCausalLM) -> float:
    """Return the median milliseconds of a one-token forward behind a cached context, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cache = DynamicCache(config=model.config)
        model(input_ids=torch.ones(1, _CONTEXT, dtype=torch.long), past_key_values=cache)
        return 1e3 * statistics.median(_time_forward(model, cache) for _ in range(_REPEATS))
    finally:
        torch.set_num_threads(threads)


def _time_forward(model: LlamaForCausalLM, cache: DynamicCache) -> float:
    began = time.perf_counter()
    model(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
    return time.perf_counter() - began
