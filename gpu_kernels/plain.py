"""The kernels' results by plain torch, on any device: they define the kernels, and check them at load."""

import torch
from torch import Tensor

from fly.blocks import BLOCK_TOKENS


def plain_row_facts(logits: Tensor, vocab_size: int) -> Tensor:
    """Return the facts of all rows as `row_facts` does, computed in the type of the logits."""
    logits = logits[:, :vocab_size]
    totals = logits.logsumexp(-1, keepdim=True)
    top = logits.topk(min(3, vocab_size)).values
    log_p = top - totals
    entropies = torch.special.entr(log_p.exp()).sum(-1, keepdim=True)
    missing = top.new_full((len(top), 3 - top.shape[1]), -torch.inf)
    choices = logits.argmax(-1, keepdim=True)
    return torch.cat((choices.double(), top, missing, totals, entropies), -1)


def plain_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    contexts: Tensor,
    starts: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the attention of a ragged batch as `paged_attention` does, computed in the type of the query."""
    group, attended = query.shape[1] // keys.shape[1], torch.zeros_like(query)
    bounds = starts.tolist()
    for table, context, start, end in zip(tables, contexts.tolist(), bounds, bounds[1:], strict=False):
        positions = torch.arange(context + end - start, device=query.device)
        stored = table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        scores = (
            torch.einsum("ihd,jhd->hij", query[start:end], keys[stored].repeat_interleave(group, 1)) * scale
        )
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        own = positions[context:, None]
        is_hidden = positions > own
        if window is not None:
            is_hidden |= positions <= own - window
        scores = scores.masked_fill(is_hidden, -torch.inf)
        if sinks is not None:
            column = sinks.to(scores.dtype)[:, None, None].expand(-1, end - start, 1)
            scores = torch.cat((scores, column), -1)
        weights = scores.softmax(-1)[..., : len(positions)]
        attended[start:end] = torch.einsum(
            "hij,jhd->ihd", weights, values[stored].repeat_interleave(group, 1)
        )
    return attended
