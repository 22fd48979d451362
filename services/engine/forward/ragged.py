"""The ragged forward: an unmodified transformers model over the KV memory of a flat batch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from flyserve.core.errors import ModelError
from services.engine.forward.attention import Attention
from services.engine.forward.forward_batch import NO_CAP, Cap, ForwardBatch
from services.engine.forward.padding import Padding
from services.engine.forward.shape import AttentionShape
from services.engine.forward.varlen_attention import make_attention
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
        """Return the logits of the output rows, (outputs, embedding rows).

        Rows are padded for all operators, as for attention: the last of a number that is no multiple of a
        vector is computed by another function of an exponential.
        """
        padding = self.kv_cache.padding
        kept = None if batch.outputs is None else _padded(batch.outputs, padding)
        logits = self._model(
            input_ids=_padded(batch.ids, padding)[None],
            position_ids=_padded(batch.positions, padding)[None],
            use_cache=False,
            logits_to_keep=0 if kept is None else kept,
            flyserve_attention=make_attention(batch, self.kv_cache),
        ).logits
        assert isinstance(logits, Tensor)
        return logits[0, : batch.num_outputs]

    def attend(
        self, batch: ForwardBatch, projected: Tensor, shape: AttentionShape, cap: Cap = NO_CAP
    ) -> Tensor:
        """As `Forward`."""
        queries, new = projected.tensor_split([shape.heads * shape.dim], dim=1)
        new = new.view(-1, 2, shape.kv_heads, shape.dim)
        attention = make_attention(batch, self.kv_cache)
        sinks = torch.linspace(-1, 1, shape.heads).to(queries) if cap.has_sinks else None
        return attention(0, queries.reshape(-1, shape.heads, shape.dim), new, None, None, cap.softcap, sinks)


def _padded(numbers: Tensor, padding: Padding) -> Tensor:
    """Return a vector of a padded length; what is added is 0."""
    missing = padding.padded_rows(len(numbers)) - len(numbers)
    return F.pad(numbers, (0, missing)) if missing else numbers


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
    flyserve_attention: Attention | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a flat batch; an attention function of transformers' interface.

    Args:
        module: The attention layer; its `layer_idx` addresses the KV cache.
        query: (1, heads, rows, dim).
        key: Keys of the new rows only, (1, KV heads, rows, dim).
        value: Values, shaped as `key`.
        attention_mask: None; masks are made by `flyserve_attention`.
        scaling: Factor of the attention scores; 1 / sqrt(dim) by default.
        dropout: Must be 0.
        sliding_window: Positions that a row attends to, including itself.
        softcap: Soft cap of the attention scores (Gemma 2).
        s_aux: Attention sinks per head (GPT-OSS).
        flyserve_attention: Computes it over KV memory.
        kwargs: Other arguments of the layer; not used.

    Returns:
        (1, rows, heads, dim), and None in place of attention weights.

    Raises:
        ModelError: The layer needs attention that this function does not compute.
    """
    if flyserve_attention is None:
        raise ModelError(
            f"{type(module).__name__} does not pass keyword arguments on to its attention: not supported"
        )
    if kwargs.get("position_bias") is not None:
        raise ModelError(f"{type(module).__name__}: attention with a position bias is not supported")
    layer = module.layer_idx
    assert isinstance(layer, int)
    new = torch.stack((key[0], value[0])).permute(2, 0, 1, 3)
    attended = flyserve_attention(
        layer, query[0].transpose(0, 1), new, scaling, sliding_window, softcap, s_aux
    )
    return attended[None].to(value.dtype), None
