"""Sequences of different lengths in one forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM


def pad_left(sequences: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and attention mask, shape (sequences, longest), so that all end in the last column."""
    width = max(map(len, sequences))
    tokens = [[pad] * (width - len(s)) + list(s) for s in sequences]
    mask = [[0] * (width - len(s)) + [1] * len(s) for s in sequences]
    return torch.tensor(tokens), torch.tensor(mask)


@torch.inference_mode()
def last_logits(
    model: LlamaForCausalLM, tokens: torch.Tensor, mask: torch.Tensor, count: int
) -> torch.Tensor:
    """Return the logits of the last `count` columns in fp32, shape (sequences, count, vocabulary)."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    output = model(
        input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=count
    )
    logits: torch.Tensor = output.logits
    return logits.float()


@torch.inference_mode()
def continue_greedily(
    model: LlamaForCausalLM, sequences: Sequence[Sequence[int]], pad: int, count: int, end: int | None
) -> list[list[int]]:
    """Return up to `count` further tokens of each sequence; with `end`, up to and with that token."""
    tokens, mask = pad_left(sequences, pad)
    output = model.generate(  # type: ignore[misc]
        input_ids=tokens,
        attention_mask=mask,
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=-1 if end is None else end,
        pad_token_id=pad,
    )
    return [_cut(row[tokens.shape[1] :].tolist(), end) for row in output]


def _cut(tokens: list[int], end: int | None) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens
