"""Attention of one sequence: by SDPA, or eagerly where a model wants what SDPA cannot compute."""

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Attention of one sequence's rows over its KV; without a mask they are causal, or a single row.

    Args:
        query: (1, heads, rows, dim).
        keys: (1, KV heads, length, dim).
        values: As `keys`.
        mask: Additive, (rows, length).
        scaling: Of the scores; 1 / sqrt(dim) by default.

    Returns:
        (1, heads, rows, dim).
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
) -> Tensor:
    """As `attend`, with capped scores and sinks.

    Args:
        query: (1, heads, rows, dim).
        keys: (1, KV heads, length, dim).
        values: As `keys`.
        mask: Additive, (rows, length).
        scaling: Of the scores; 1 / sqrt(dim) by default.
        softcap: Scores are bent to lie within plus and minus this.
        sinks: Per head the score of a place that takes attention and gives no value, (heads,).
    """
    _, heads, num_rows, dim = query.shape
    kv_heads, length = keys.shape[1:3]
    grouped = query.reshape(1, kv_heads, heads // kv_heads, num_rows, dim)
    scores: Tensor = (
        grouped @ keys[:, :, None].transpose(-1, -2) * (dim**-0.5 if scaling is None else scaling)
    )
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + (_causal_mask(num_rows, length, scores) if mask is None else mask)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)[..., :length]
    attended: Tensor = weights @ values[:, :, None]
    return attended.flatten(1, 2)


def _causal_mask(num_rows: int, length: int, like: Tensor) -> Tensor:
    """The rows are the last of the sequence, and each sees all up to itself."""
    return like.new_full((num_rows, length), float("-inf")).triu_(length - num_rows + 1)
