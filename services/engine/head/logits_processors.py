"""Logits processors: grammar, bias, penalties, and stop tokens that are not allowed before min_tokens.

A grammar decides where a text may end: min_tokens only excludes an end where the text may go on as well.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, KvSlot
from services.engine.head.finite import Fault
from services.engine.head.grammar_masks import PATIENCE_S, GrammarMasks
from services.engine.head.logit_biases import LogitBiases
from services.engine.head.token_counts import TokenCounts, subtracted_penalties

_FIELDS = ("logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")
"""Sampling parameters that change logits."""


def needs_processing(item: ForwardInput) -> bool:
    """Check that the logits of some output row must be changed."""
    return item.grammar is not None or _changes_logits(item)


class LogitsProcessors:
    """The processors of all sequences; token counts and biases of those with any live until `forget`."""

    def __init__(self, vocab_size: int, mask_patience_s: float = PATIENCE_S) -> None:
        self._vocab_size = vocab_size
        self._masks = GrammarMasks(vocab_size, mask_patience_s)
        self._counts: dict[KvSlot, TokenCounts] = {}
        self._biases = LogitBiases()

    def __len__(self) -> int:
        """Number of sequences of which something is kept."""
        return len(self._counts) + len(self._biases)

    def start(self, batch: Sequence[ForwardInput]) -> None:
        """Begin to compute the masks of a batch in other threads; called before its forward."""
        self._masks.start(batch)

    def join(self, batch: Sequence[ForwardInput]) -> None:
        """Wait a while for the masks of a batch; called once per forward, before `process`."""
        self._masks.join(batch)

    def count(self, batch: Sequence[ForwardInput], device: torch.device) -> None:
        """Update the token counts of a batch's sequences; called once per forward, before `process`."""
        for item in batch:
            counts = self._counts.get(item.slot)
            if counts is not None and not counts.fits(item):
                del self._counts[item.slot]
                counts = None
            if counts is None and item.num_outputs and item.sampling.has_penalties:
                counts = TokenCounts(self._vocab_size, item.sampling, item.prompt_length, device)
                self._counts[item.slot] = counts
            if counts is not None:
                counts.count(item)

    def fault(self, item: ForwardInput) -> Fault | None:
        """Return the first output without the mask of its grammar, and the reason; None if there is none."""
        return self._masks.fault(item)

    def process(
        self, blocks: Tensor, maxima: Tensor, item: ForwardInput, first: int, scratch: Tensor
    ) -> None:
        """Change a sequence's output rows from `first` on, (rows, blocks, tokens of a block), in place.

        `maxima` has the largest logit of each block, and keeps up.

        The prefix of a row ends at its own position and includes drafts. The repetition penalty counts prompt
        and response; presence and frequency penalties count the response only (as vLLM does). `scratch` is
        memory for a slice of the rows.
        """
        sampling = item.sampling
        logits = blocks.flatten(1)[:, : self._vocab_size]
        if item.grammar is not None:
            self._masks.apply(blocks, maxima, item, first)
        if not _changes_logits(item):
            return
        if sampling.logit_bias:
            self._biases.add(logits, item)
        if sampling.has_penalties:
            _penalize(logits, item, first, self._counts[item.slot], scratch)
        num_masked = min(max(0, sampling.min_tokens - _first_response_index(item) - first), len(logits))
        if num_masked and sampling.stop_token_ids:
            _hold_back(logits[:num_masked], list(sampling.stop_token_ids), item.grammar is not None)
        torch.amax(blocks, -1, out=maxima)

    def forget(self, slot: KvSlot) -> None:
        """Free what is kept for a closed sequence."""
        self._masks.forget(slot)
        self._counts.pop(slot, None)
        self._biases.forget(slot)


def blame(item: ForwardInput, position: int) -> tuple[str, str]:
    """Return why an input has no token to choose at a position, and the field of the request to change."""
    sampling, neutral = item.sampling, SamplingParams()
    fields = [
        *(f"sampling.{name}" for name in _FIELDS if getattr(sampling, name) != getattr(neutral, name)),
        *(["grammar"] if item.grammar is not None else []),
    ]
    others = f", together with {', '.join(fields[1:])}" if fields[1:] else ""
    return f"leaves no token to choose at position {position}{others}", fields[0]


def excluded_drafts(logits: Tensor, drafts: Sequence[int]) -> tuple[bool, ...]:
    """Return per row whether the processed logits (outputs, vocabulary) exclude its draft."""
    index = torch.tensor(drafts, device=logits.device)
    drafted = logits.gather(1, index.clamp(min=0)[:, None])[:, 0]
    return tuple((drafted.isneginf() & (index >= 0)).tolist())


def _changes_logits(item: ForwardInput) -> bool:
    """Check that some row must be changed by another processor than the grammar."""
    sampling = item.sampling
    return (
        bool(sampling.logit_bias)
        or sampling.has_penalties
        or (bool(sampling.stop_token_ids) and _first_response_index(item) < sampling.min_tokens)
    )


def _first_response_index(item: ForwardInput) -> int:
    """Return the number of response tokens before the one that the first output row chooses."""
    return item.first_position - item.prompt_length


def _hold_back(early: Tensor, stop_ids: Sequence[int], has_grammar: bool) -> None:
    """Exclude stop tokens from the rows before min_tokens, but not where a grammar allows nothing else."""
    held = early[:, stop_ids]
    early[:, stop_ids] = -torch.inf
    if has_grammar:
        has_ended = early.amax(-1, keepdim=True).isneginf()
        early[:, stop_ids] = torch.where(has_ended, held, -torch.inf)


def _penalize(logits: Tensor, item: ForwardInput, first: int, counts: TokenCounts, scratch: Tensor) -> None:
    """Penalize the tokens before the first output in all rows, then correct the ids of later tokens.

    The penalties of the first output are vectors over the vocabulary: a sequence of 128k tokens has tens of
    thousands of ids, for which a dense operation is faster than one by index. `min(x / r, x * r)` is x / r
    for positive and x * r for negative x if r is above 1, and the maximum is if r is below.
    """
    position, penalty = item.first_position, item.sampling.repetition_penalty
    later = np.array(item.history[position : position + first + len(logits) - 1], dtype=np.int64)
    ids = np.unique(later)
    index = torch.from_numpy(ids).to(logits.device)
    values = logits[:, index]
    if counts.divisors is not None:
        choose = torch.minimum if penalty > 1.0 else torch.maximum
        for start in range(0, len(logits), len(scratch)):
            part = logits[start : start + len(scratch)]
            divided = torch.div(part, counts.divisors, out=scratch[: len(part)])
            choose(divided, part.mul_(counts.divisors), out=part)
    if counts.subtracted is not None:
        logits -= counts.subtracted
    if ids.size:
        seen, written = (each[first:].to(logits.device) for each in counts.rows(ids, later))
        # NOTE: on a GPU, torch multiplies by the inverse of a Python number, which rounds differently.
        repeated = torch.where(values > 0, values / logits.new_full((), penalty), values * penalty)
        values = torch.where(seen > 0, repeated, values)
        logits[:, index] = values - subtracted_penalties(item.sampling, written)
