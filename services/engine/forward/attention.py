"""Ragged attention for unmodified transformers classes: each sequence of a batch attends to itself only."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from fly.errors import ModelError
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.memory.kv_cache import KvCache

IMPLEMENTATION = "flyserve_ragged"
"""Name registered with transformers. No mask function is registered, so transformers builds no mask."""


class RaggedForward:
    """Computes the logits of an unmodified transformers model over a KV cache."""

    def __init__(self, model: PreTrainedModel, kv_cache: KvCache) -> None:
        self._model = model
        self.kv_cache = kv_cache
        AttentionInterface.register(IMPLEMENTATION, ragged_attention)
        model.set_attn_implementation(IMPLEMENTATION)

    def __call__(self, batch: ForwardBatch) -> Tensor:
        """Return the logits of the output rows, (outputs, embedding rows)."""
        logits = self._model(
            input_ids=batch.ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=0 if batch.outputs is None else batch.outputs,
            flyserve_batch=batch,
            flyserve_kv_cache=self.kv_cache,
        ).logits
        assert isinstance(logits, Tensor)
        return logits[0]


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    flyserve_batch: ForwardBatch | None = None,
    flyserve_kv_cache: KvCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a flat batch; an attention function of transformers' interface.

    Args:
        module: The attention layer; its `layer_idx` addresses the KV cache.
        query: (1, heads, rows, dim).
        key: Keys of the new rows only, (1, KV heads, rows, dim).
        value: Values, shaped as `key`.
        attention_mask: None; masks are made by `flyserve_batch`.
        scaling: Factor of the attention scores; 1 / sqrt(dim) by default.
        dropout: Must be 0.
        sliding_window: Positions that a row attends to, including itself.
        softcap: Soft cap of the attention scores (Gemma 2).
        s_aux: Attention sinks per head (GPT-OSS).
        flyserve_batch: Sequence and position of each row.
        flyserve_kv_cache: KV memory.
        kwargs: Other arguments of the layer; not used.

    Returns:
        (1, rows, heads, dim), and None in place of attention weights.

    Raises:
        ModelError: The layer needs attention that this function does not compute.
    """
    if flyserve_batch is None or flyserve_kv_cache is None:
        raise ModelError(
            f"{type(module).__name__} does not pass keyword arguments on to its attention: not supported"
        )
    if kwargs.get("position_bias") is not None:
        raise ModelError(f"{type(module).__name__}: attention with a position bias is not supported")
    dtype = flyserve_kv_cache.dtype or query.dtype
    is_eager = softcap is not None or s_aux is not None
    masks = flyserve_batch.masks(sliding_window, dtype, is_dense=is_eager)
    query = query.to(dtype)
    layer = module.layer_idx
    assert isinstance(layer, int)
    parts = []
    for rows, mask in zip(flyserve_batch.rows, masks, strict=True):
        span = slice(rows.offset, rows.offset + rows.num_rows)
        keys, values = flyserve_kv_cache.store(
            layer, rows.slot, rows.start, key[0, :, span], value[0, :, span]
        )
        if is_eager:
            parts.append(attend_eager(query[:, :, span], keys, values, mask, scaling, softcap, s_aux))
        else:
            parts.append(attend(query[:, :, span], keys, values, mask, scaling))
    output = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    return output.transpose(1, 2).to(value.dtype), None


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Compute the attention of one sequence's rows over its KV; without a mask it is causal.

    Args:
        query: (1, heads, rows, dim).
        keys: (1, KV heads, length, dim).
        values: Shaped as `keys`.
        mask: Additive, (rows, length), or torch's `CausalBias`.
        scaling: Factor of the attention scores; 1 / sqrt(dim) by default.

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
    """Compute attention as `attend` does, with capped scores and sinks, which SDPA does not support.

    `softcap` bounds the scores by tanh. `sinks`, (heads,), are the scores of a virtual position that receives
    attention and has no value.
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
    """Return a causal mask for the last rows of a sequence, (rows, length)."""
    return like.new_full((num_rows, length), float("-inf")).triu_(length - num_rows + 1)
