"""FLy as its paper describes it (arXiv 2511.22972), over transformers' own classes, one response at a time.

The loop is written from the paper; the rule is the preset `official`, which gives the tokens of AMD's code.
"""

import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from benchmarks.scenarios.peers.plan import DRAFT_LENGTH, Answer
from benchmarks.scenarios.peers.transformers_peer import load_plain
from flyserve.core.presets import PRESETS
from flyserve.core.sequence import common_length
from flyserve.core.speculation import Speculation
from flyserve.core.types import Evidence, Position, ResponseLimits
from router.text.tokenizer import Tokenizer

_LOOKUP_TOKENS = 6
"""Longest look-up that the drafter verifies."""
_ORDERS = range(5, 1, -1)
"""Lengths of the last tokens that are looked up, the longest first."""


class PublishedLoop:
    """A target, and a drafter that verifies look-ups in the sequence (multi-level acceleration)."""

    def __init__(self, target: Path, drafter: Path, dtype: str) -> None:
        self._models = load_plain(target, dtype), load_plain(drafter, dtype)
        self._ending_ids = frozenset(Tokenizer.load(target).eos_ids)

    @torch.inference_mode()
    def decode(self, prompt: Sequence[int], max_new_tokens: int) -> Answer:
        """Decode one response, with greedy sampling."""
        start = time.perf_counter()
        target, drafter = map(_CachedModel, self._models)
        limits = ResponseLimits(max_new_tokens, self._ending_ids)
        speculation = Speculation(prompt, PRESETS["official"], limits)
        while speculation.finish_reason is None:
            ids = speculation.sequence.ids
            drafts = _draft(drafter, ids, min(DRAFT_LENGTH, speculation.max_drafts))
            speculation.apply(_verify(target, ids, drafts))
        seconds = time.perf_counter() - start
        tokens = speculation.sequence.ids[len(prompt) : speculation.decided_length]
        return Answer(tuple(tokens), seconds, speculation.statistics.tau or None)


class _CachedModel:
    """One model with the KV cache of one sequence, which may be rolled back."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)
        self._ids: list[int] = []

    def logits(self, ids: Sequence[int], num_rows: int) -> Tensor:
        """Return the logits after each of the last `num_rows` tokens of `ids`, (num_rows, vocabulary)."""
        keep = min(common_length(self._ids, ids), len(ids) - num_rows)
        self._cache.crop(keep - len(self._ids))
        rows = torch.tensor([ids[keep:]])
        logits: Tensor = self._model(rows, past_key_values=self._cache, use_cache=True).logits
        self._ids = list(ids)
        return logits[0, -num_rows:]


def _looked_up(ids: list[int], max_tokens: int) -> list[int]:
    """Return what followed the latest earlier occurrence of the last tokens, at most `max_tokens` of it."""
    found = array("Q", ids)
    whole, size = found.tobytes(), found.itemsize
    for order in _ORDERS:
        tail, end = whole[-order * size :], len(whole) - 1
        while (end := whole.rfind(tail, 0, end)) >= 0:
            if end % size == 0:
                start = end // size + order
                return ids[start : start + min(max_tokens, _LOOKUP_TOKENS)]
            end += len(tail) - 1
    return []


def _draft(drafter: _CachedModel, ids: Sequence[int], max_tokens: int) -> list[int]:
    """Return the drafter's greedy continuation; a forward verifies a look-up and adds one token."""
    drafted = list(ids)
    while (room := len(ids) + max_tokens - len(drafted)) > 0:
        proposal = _looked_up(drafted, room - 1)
        logits = drafter.logits([*drafted, *proposal], len(proposal) + 1)
        choices: list[int] = logits.argmax(-1).tolist()
        drafted += choices[: common_length(proposal, choices) + 1]
    return drafted[len(ids) :]


def _verify(target: _CachedModel, ids: Sequence[int], drafts: Sequence[int]) -> Evidence:
    """Return the target's choices and entropies (top 3 of the full softmax, in nats) at every draft."""
    logits = target.logits([*ids, *drafts], len(drafts) + 1)
    choices: list[int] = logits.argmax(-1).tolist()
    top = logits.float().log_softmax(-1).topk(3).values
    entropies: list[float] = (-(top.exp() * top).sum(-1)).tolist()
    positions = tuple(map(Position, drafts, choices, entropies))
    return Evidence(positions, choices[-1], entropies[-1])
