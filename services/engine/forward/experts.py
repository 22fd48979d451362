"""Experts of a mixture whose rows have the same bits in any batch."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface


def pad_experts(model: PreTrainedModel, rows: int) -> None:
    """Let each expert of a model, if it has any, compute a multiple of `rows`: one kernel multiplies them."""
    if model._can_set_experts_implementation():
        ExpertsInterface.register(name := f"flyserve_padded_{rows}", partial(padded_experts, multiple=rows))
        model.config.get_text_config()._experts_implementation = name


def padded_experts(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor, *, multiple: int
) -> Tensor:
    """Compute each expert over its rows; an experts function of transformers' interface.

    Args:
        module: The experts, with weights (experts, out, in), or (experts, in, out) if they are transposed.
        hidden_states: (rows, width).
        top_k_index: Experts of each row, (rows, k); the number of experts stands for those of other ranks.
        top_k_weights: Their weights, (rows, k).
        multiple: Multiple to which the rows of an expert are padded.

    Returns:
        (rows, width).
    """
    found = hidden_states.new_zeros(*top_k_index.shape, hidden_states.shape[1])
    for expert in torch.unique(top_k_index).tolist():
        if expert < module.num_experts:
            rows, places = (top_k_index == expert).nonzero(as_tuple=True)
            padded = F.pad(hidden_states[rows], (0, 0, 0, -len(rows) % multiple))
            own = _expert(module, expert, padded)[: len(rows)]
            found[rows, places] = (own * top_k_weights[rows, places, None]).to(found.dtype)
    return found.sum(1)


def _expert(module: Any, expert: int, rows: Tensor) -> Tensor:
    up = _linear(module, "gate_up_proj" if module.has_gate else "up_proj", expert, rows)
    hidden = module._apply_gate(up) if module.has_gate else module.act_fn(up)
    found = _linear(module, "down_proj", expert, hidden)
    return module.post_expert_norm(found) if module.has_post_expert_norm else found


def _linear(module: Any, name: str, expert: int, rows: Tensor) -> Tensor:
    weight: Tensor = getattr(module, name)[expert]
    found = F.linear(rows, weight.T if module.is_transposed else weight)
    return found + getattr(module, f"{name}_bias")[expert] if module.has_bias else found
