"""Masks of the sequences with a grammar, computed in threads while the forward runs."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flyserve.core.noise import BLOCK
from services.common.grammars.follower import Mask
from services.common.grammars.library import GrammarError, GrammarLost
from services.engine.base import ForwardInput, KvSlot, MaskFollower, TokenGrammar
from services.engine.head.finite import Fault

PATIENCE_S = 0.05
"""Longest time that a forward waits for masks, which are computed meanwhile: usual ones take below 1 ms."""
_MOST_THREADS = 64
"""Threads that wait for the processes of grammars."""
_FEW = 8
"""Part of the vocabulary that counts as few: allowed tokens are read and written, excluded ones written."""


class RowMask(NamedTuple):
    """The tokens that one row allows, if they are few, or else those that it excludes.

    Attributes:
        blocks: Numbers of the blocks of logits that they are in.
        lists_allowed: True if `ids` are the only allowed tokens, False if they are the excluded ones.
    """

    ids: NDArray[np.int64]
    blocks: NDArray[np.int64]
    lists_allowed: bool


_NONE = np.empty(0, np.int64)
_EVERYTHING = RowMask(_NONE, _NONE, lists_allowed=False)


@dataclass(frozen=True, slots=True)
class _Masks:
    """Masks of an input's output rows; those without a grammar's state allow everything.

    Attributes:
        fault: The first row without its mask, and the reason.
    """

    rows: Sequence[RowMask] = ()
    fault: Fault | None = None


@dataclass(slots=True, eq=False)
class _Sequence:
    """The follower of one sequence, and the masks of its running forward.

    Attributes:
        item: Input that `masks` are computed for.
    """

    grammar: TokenGrammar
    follower: MaskFollower
    item: ForwardInput | None = None
    masks: "Future[_Masks] | None" = None


class GrammarMasks:
    """Masks by sequence. `start` begins to compute those of a forward, `join` waits for them.

    All methods are called by the thread that owns the head.
    """

    def __init__(self, vocab_size: int, patience_s: float = PATIENCE_S) -> None:
        """Compute masks of `vocab_size` tokens; no forward waits for them for longer than `patience_s`."""
        self._vocab_size = vocab_size
        self._patience_s = patience_s
        self._sequences: dict[KvSlot, _Sequence] = {}
        self._joined: dict[KvSlot, _Masks] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        """Number of sequences that are followed."""
        return len(self._sequences)

    def start(self, batch: Sequence[ForwardInput]) -> None:
        """Begin the masks of a batch, unless they were begun for the same inputs. Returns at once."""
        for item in batch:
            if item.grammar is not None and item.num_outputs:
                sequence = self._sequence(item.slot, item.grammar)
                if sequence.item is not item:
                    sequence.masks = self._submit(sequence, item)
                    sequence.item = item

    def join(self, batch: Sequence[ForwardInput]) -> None:
        """Wait a while for the masks of a batch; `start` is called for a batch that was not begun.

        Those that are not done are `late`: their inputs must be computed again, when they are.
        """
        self.start(batch)
        wanted = {item.slot: item for item in batch if item.grammar is not None and item.num_outputs}
        begun = {slot: masks for slot in wanted if (masks := self._sequences[slot].masks) is not None}
        wait(begun.values(), self._patience_s)
        self._joined = {
            slot: masks.result() if masks.done() else _Masks(fault=Fault(0, "the masks are late", late=masks))
            for slot, masks in begun.items()
        }

    def fault(self, item: ForwardInput) -> Fault | None:
        """Return the first output of a joined input without its mask; None if all have theirs."""
        return self._joined[item.slot].fault if item.grammar is not None else None

    def apply(self, blocks: Tensor, maxima: Tensor, item: ForwardInput, first: int) -> None:
        """Exclude tokens from rows of an input, from its output `first` on, in place.

        `blocks` has the logits, (rows, blocks, tokens of a block), and `maxima` their largest of each block.
        """
        masks = self._joined[item.slot].rows[first : first + len(blocks)]
        logits, width = blocks.view(-1), blocks[0].numel()
        allowed = _flat([mask.ids if mask.lists_allowed else _NONE for mask in masks], width, logits.device)
        excluded = _flat([_NONE if mask.lists_allowed else mask.ids for mask in masks], width, logits.device)
        values = logits[allowed]
        for row, mask in enumerate(masks):
            if mask.lists_allowed:
                blocks[row].fill_(-torch.inf)
                maxima[row].fill_(-torch.inf)
        logits[allowed] = values
        logits.index_fill_(0, excluded, -torch.inf)
        if 2 * sum(len(mask.blocks) for mask in masks) > maxima.numel():
            torch.amax(blocks, -1, out=maxima)
            return
        changed = _flat([mask.blocks for mask in masks], maxima.shape[1], logits.device)
        maxima.view(-1)[changed] = blocks.flatten(0, 1)[changed].amax(-1)

    def forget(self, slot: KvSlot) -> None:
        """Free what is kept for a closed sequence."""
        self._sequences.pop(slot, None)

    def _sequence(self, slot: KvSlot, grammar: TokenGrammar) -> _Sequence:
        found = self._sequences.get(slot)
        if found is None or found.grammar is not grammar:
            found = self._sequences[slot] = _Sequence(grammar, grammar.follower())
        return found

    def _submit(self, sequence: _Sequence, item: ForwardInput) -> "Future[_Masks]":
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="flyserve-grammar")
        response = _response_before(item)
        return self._pool.submit(self._compute, sequence.masks, sequence.follower, item, response)

    def _compute(
        self,
        before: "Future[_Masks] | None",
        follower: MaskFollower,
        item: ForwardInput,
        response: Sequence[int],
    ) -> _Masks:
        """Return the masks of an input's output rows, after those of an abandoned forward.

        A fault of the first mask is one of the whole input, any other one of the draft before its row.
        """
        if before is not None:
            before.exception()
        rows = [_EVERYTHING] * item.num_outputs
        start = max(0, item.prompt_length - item.first_position)
        if start >= item.num_outputs:
            return _Masks(rows)  # these rows score the prompt
        drafts, row = [token for token in item.drafts[start:] if token >= 0], start
        try:
            for mask in follower.masks(response, drafts, item.sampling.ending_ids):
                rows[row], row = row_mask(mask, self._vocab_size), row + 1
        except GrammarError as error:
            reason = f"cannot be followed at position {item.first_position + row}: {error}"
            is_lost = isinstance(error, GrammarLost)
            first = row if row > start else 0
            return _Masks(rows, Fault(first, reason, "" if is_lost else "grammar", is_lost=is_lost))
        return _Masks(rows)


def row_mask(mask: Mask, vocab_size: int) -> RowMask:
    """Return the ids of a packed mask: a list of few is applied sooner than a bit for each token."""
    lists_allowed = _FEW * int(np.bitwise_count(mask).sum()) <= vocab_size
    listed = np.unpackbits((mask if lists_allowed else ~mask).view(np.uint8), bitorder="little")[:vocab_size]
    starts = np.arange(0, vocab_size, BLOCK)
    blocks = np.flatnonzero(np.maximum.reduceat(listed, starts))
    return RowMask(np.flatnonzero(listed.view(np.bool_)), blocks, lists_allowed)


def _flat(columns: Sequence[NDArray[np.int64]], width: int, device: torch.device) -> Tensor:
    """Return the index of places in a flat matrix of rows of `width`, from the columns of each row."""
    flat = np.concatenate([row * width + each for row, each in enumerate(columns)])
    return torch.from_numpy(flat).to(device)


def _response_before(item: ForwardInput) -> Sequence[int]:
    """Return the tokens of the response before the first output that chooses one of it, as a copy."""
    return item.history[item.prompt_length : max(item.prompt_length, item.first_position)]
