"""Masks of the sequences with a grammar, computed in threads while the forward runs."""

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fly.noise import BLOCK
from services.common.grammars.follower import GrammarFollower, Mask
from services.common.grammars.library import GrammarError, compile_grammar, load_tokenizer
from services.engine.base import ForwardInput, KvSlot

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_MOST_GRAMMARS = 32
"""Compiled grammars that are kept for later sequences."""
_MOST_THREADS = 8
_BITS = 32
_FEW = 8
"""Part of the vocabulary that counts as few: allowed tokens are read and written, excluded ones written."""

T = TypeVar("T")


class GrammarTokenizer:
    """The tokenizer of a model folder for grammars, loaded when the first grammar needs it."""

    def __init__(self, folder: Path | None, vocab_size: int) -> None:
        self._folder = folder
        self._loaded: LLTokenizer | None = None
        self.vocab_size = vocab_size

    def load(self) -> "LLTokenizer":
        """Return the tokenizer; raise GrammarError if the folder has none that can be used."""
        if self._loaded is None:
            path = self._folder / "tokenizer.json" if self._folder is not None else None
            if path is None or not path.is_file():
                raise GrammarError("the model folder has no tokenizer.json, which grammars need")
            self._loaded = load_tokenizer(path.read_text(encoding="utf-8"), self.vocab_size)
        return self._loaded


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
    """Masks of an input's output rows; those without a grammar's state allow everything."""

    rows: Sequence[RowMask]
    fault: str = ""


@dataclass(slots=True)
class _Sequence:
    """The follower of one sequence, and the masks of its running forward."""

    grammar: str
    follower: "Future[GrammarFollower]"
    masks: "Future[_Masks] | None" = None


class GrammarMasks:
    """Masks by sequence. `start` begins to compute those of a forward, `join` waits for them.

    All methods are called by the thread that owns the head; a sequence has one task at a time.
    """

    def __init__(self, tokenizer: GrammarTokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._sequences: dict[KvSlot, _Sequence] = {}
        self._joined: dict[KvSlot, _Masks] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        """Number of sequences that are followed."""
        return len(self._sequences)

    def start(self, batch: Sequence[ForwardInput]) -> None:
        """Begin the masks of a batch; a prefill begins to compile its grammar. Returns at once."""
        for item in batch:
            if item.grammar:
                sequence = self._sequence(item)
                if sequence.masks is not None:
                    sequence.masks.exception()  # a forward that failed: its task still uses the follower
                    sequence.masks = None
                if item.num_outputs:
                    sequence.masks = self._submit(
                        self._compute, sequence.follower, item, _response_before(item)
                    )

    def join(self, batch: Sequence[ForwardInput]) -> None:
        """Wait for the masks of a batch; `start` is called for a batch that was not begun."""
        wanted = [item for item in batch if item.grammar and item.num_outputs]
        self._joined = {}
        for item in wanted:
            if self._pending(item) is None:
                self.start([item])
            masks = self._pending(item)
            assert masks is not None
            self._joined[item.slot] = masks.result()
            self._sequences[item.slot].masks = None

    def fault(self, item: ForwardInput) -> str:
        """Return the reason why a joined input has no masks; "" if it has them."""
        return self._joined[item.slot].fault if item.grammar else ""

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

    def _pending(self, item: ForwardInput) -> "Future[_Masks] | None":
        sequence = self._sequences.get(item.slot)
        return None if sequence is None else sequence.masks

    def _sequence(self, item: ForwardInput) -> _Sequence:
        found = self._sequences.get(item.slot)
        if found is None or found.grammar != item.grammar:
            follower = self._submit(self._follower, self._compile(item.grammar))
            found = self._sequences[item.slot] = _Sequence(item.grammar, follower)
        return found

    def _compile(self, grammar: str) -> "Future[LLMatcher]":
        """Return the matcher of a grammar; equal grammars are compiled once."""
        if grammar not in self._compiled:
            self._compiled[grammar] = self._submit(self._compile_now, grammar)
        self._compiled.move_to_end(grammar)
        if len(self._compiled) > _MOST_GRAMMARS:
            self._compiled.popitem(last=False)
        return self._compiled[grammar]

    def _submit(self, work: Callable[..., T], *arguments: object) -> "Future[T]":
        # NOTE: tasks wait only for tasks that were submitted before them, so that no pool is too small.
        if self._pool is None:
            threads = min(_MOST_THREADS, os.cpu_count() or 1)
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="flyserve-grammar")
        return self._pool.submit(work, *arguments)

    def _compile_now(self, grammar: str) -> "LLMatcher":
        return compile_grammar(self._tokenizer.load(), grammar)

    def _follower(self, compiled: "Future[LLMatcher]") -> GrammarFollower:
        matcher, eos_ids = compiled.result().deep_copy(), self._tokenizer.load().eos_tokens
        return GrammarFollower(matcher, self._tokenizer.vocab_size, eos_ids)

    def _compute(
        self, follower: "Future[GrammarFollower]", item: ForwardInput, response: Sequence[int]
    ) -> _Masks:
        """Return the masks of an input's output rows."""
        rows = [_EVERYTHING] * item.num_outputs
        result, start = _Masks(rows), max(0, item.prompt_length - item.first_position)
        if start >= item.num_outputs:
            return result  # these rows score the prompt
        drafts = [token for token in item.drafts[start:] if token >= 0]
        try:
            masks = follower.result().masks(response, drafts, item.sampling.ending_ids)
            for row, mask in enumerate(masks, start=start):
                rows[row] = row_mask(mask, self._tokenizer.vocab_size)
        except GrammarError as error:
            return replace(result, fault=f"cannot be followed at position {item.first_position}: {error}")
        return result


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
