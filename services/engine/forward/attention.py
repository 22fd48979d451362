"""Ragged attention for unmodified transformers classes: each sequence of the flat batch sees only itself."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from fly.errors import ModelError
from services.engine.forward.attend import attend, attend_eager
from services.engine.forward.plan import Plan
from services.engine.memory.arena import KvArena

IMPLEMENTATION = "flyserve_ragged"
"""Name under which transformers knows it. No mask function is registered: transformers then builds none."""


class RaggedForward:
    """Logits of an unmodified transformers model over an arena.

    Attributes:
        arena: KV memory; may be exchanged between forwards.
    """

    def __init__(self, model: PreTrainedModel, arena: KvArena) -> None:
        self._model = model
        self.arena = arena
        AttentionInterface.register(IMPLEMENTATION, ragged_attention)
        model.set_attn_implementation(IMPLEMENTATION)

    def __call__(self, plan: Plan) -> Tensor:
        """Logits of the plan's output rows, (outputs, embedding rows)."""
        logits = self._model(
            input_ids=plan.ids[None],
            position_ids=plan.positions[None],
            use_cache=False,
            logits_to_keep=0 if plan.outputs is None else plan.outputs,
            flyserve_plan=plan,
            flyserve_arena=self.arena,
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
    flyserve_plan: Plan | None = None,
    flyserve_arena: KvArena | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a flat batch, after transformers' attention interface.

    Args:
        module: The attention layer; its `layer_idx` addresses the arena.
        query: (1, heads, rows, dim).
        key: Of the new rows only, (1, KV heads, rows, dim).
        value: As `key`.
        attention_mask: None; the plan knows who sees what.
        scaling: Of the scores; 1 / sqrt(dim) by default.
        dropout: Must be 0.
        sliding_window: Positions that a row sees, itself included.
        softcap: Of the scores (Gemma 2).
        s_aux: Sinks by head (GPT-OSS).
        flyserve_plan: Whose rows are where.
        flyserve_arena: KV memory.
        kwargs: What else a layer passes on.

    Returns:
        (1, rows, heads, dim), and no weights.

    Raises:
        ModelError: The layer wants attention that this function does not compute.
    """
    if flyserve_plan is None or flyserve_arena is None:
        raise ModelError(f"{type(module).__name__} does not pass the plan on to its attention")
    if kwargs.get("position_bias") is not None:
        raise ModelError(f"{type(module).__name__}: attention with a position bias is not served")
    dtype = flyserve_arena.dtype or query.dtype
    masks = flyserve_plan.masks(sliding_window, dtype)
    query = query.to(dtype)
    layer = module.layer_idx
    assert isinstance(layer, int)
    parts = []
    for rows, mask in zip(flyserve_plan.rows, masks, strict=True):
        span = slice(rows.offset, rows.offset + rows.num_rows)
        keys, values = flyserve_arena.store(layer, rows.slot, rows.start, key[0, :, span], value[0, :, span])
        if softcap is None and s_aux is None:
            parts.append(attend(query[:, :, span], keys, values, mask, scaling))
        else:
            parts.append(attend_eager(query[:, :, span], keys, values, mask, scaling, softcap, s_aux))
    output = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    return output.transpose(1, 2).to(value.dtype), None
