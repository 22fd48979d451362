"""Attention of rows over keys and values, for one sequence or for several of equal length."""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.engine.forward.padding import KEY_BLOCK

_MOST_SCORES = 2**26
"""Scores that `attend_eager` computes at once: two copies of them take 0.5 GB in float32."""


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Compute the attention of new rows; without a mask it is causal.

    Args:
        query: (sequences, heads, rows, dim).
        keys: (sequences, KV heads, length, dim).
        values: Shaped as `keys`.
        mask: Additive, of a shape that expands to (sequences, heads, rows, length), or torch's `CausalBias`.
        scaling: Factor of the attention scores; 1 / sqrt(dim) by default.

    Returns:
        (sequences, heads, rows, dim).
    """
    is_causal = mask is None and query.shape[2] > 1
    is_grouped = query.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=is_causal, scale=scaling, enable_gqa=is_grouped
    )


def attend_eager(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    multiple: int = 1,
) -> Tensor:
    """Compute attention as `attend` does, with capped scores and sinks, which SDPA does not support.

    `softcap` bounds the scores by tanh. `sinks`, (heads,), are the scores of a virtual position that receives
    attention and has no value. Positions are added block by block, so that the sum of a row has one order at
    every length. Where that is long, a few rows are computed at a time, a multiple of `multiple`: the scores
    of all rows would take gigabytes.
    """
    count, heads, num_rows, _ = query.shape
    if mask is None:
        mask = _causal_mask(num_rows, keys.shape[2], query)
    size = max(1, _MOST_SCORES // (count * heads * keys.shape[2] * multiple)) * multiple
    parts = [
        _attend_rows(rows, keys, values, own, scaling, softcap, sinks)
        for rows, own in zip(torch.split(query, size, 2), torch.split(mask, size, -2), strict=True)
    ]
    return torch.cat(parts, 2)


def _attend_rows(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Compute `attend_eager` for some rows and their mask."""
    count, heads, num_rows, dim = query.shape
    kv_heads, length = keys.shape[1:3]
    shape = count, kv_heads, heads // kv_heads, num_rows, length
    rows = query.reshape(count, kv_heads, -1, dim)  # those of all heads of a group
    scores = torch.cat([rows @ block.transpose(-1, -2) for block in torch.split(keys, KEY_BLOCK, 2)], -1)
    scores = scores.view(shape).mul_(dim**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    scores += mask if mask.dim() < 4 else mask.unsqueeze(1)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)[..., :length].flatten(2, 3)
    blocks = zip(torch.split(weights, KEY_BLOCK, -1), torch.split(values, KEY_BLOCK, 2), strict=True)
    parts = [(weight @ value).float() for weight, value in blocks]
    attended: Tensor = parts[0]
    for part in parts[1:]:
        attended += part
    return attended.to(values.dtype).view(count, heads, num_rows, dim)


def _causal_mask(num_rows: int, length: int, like: Tensor) -> Tensor:
    """Return a causal mask for the last rows of a sequence, (rows, length)."""
    return like.new_full((num_rows, length), float("-inf")).triu_(length - num_rows + 1)
