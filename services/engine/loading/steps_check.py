"""Check at load that a runner computes in steps, with roll-backs and shared blocks, what a prefill gives."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flyserve.core.errors import ModelError, describe
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, KvSlot, Runner
from services.engine.forward.self_check import TOLERANCE, difference_of, hash_of_bits

_LENGTH = 70
"""Tokens of a sequence: several blocks of memory, the last one not full."""
_Found = tuple[Tensor, Tensor]
"""Computed logits and those of a prefill."""


class StepsCheck(NamedTuple):
    """Result of the check.

    Attributes:
        kernels: Hash of the rows: replicas of a model that agree on it compute alike.
        is_invariant: The rows in steps have the bits of the prefills.
    """

    kernels: str
    is_invariant: bool


def check_steps(runner: Runner, dtype: torch.dtype | None = None, length: int = _LENGTH) -> StepsCheck:
    """Compute two sequences of `length` in steps, and compare their rows with those of a prefill of each.

    The rows may differ as much as those of `dtype`, by default the runner's.

    Raises:
        ModelError: The rows differ by more than rounding, or a step fails.
    """
    name, dtype = runner.info.model_id, dtype or getattr(torch, runner.info.dtype, torch.bfloat16)
    dtype = dtype if dtype in TOLERANCE else torch.bfloat16
    try:
        computed, expected = map(torch.cat, zip(*_compute(runner, length), strict=True))
    except Exception as error:
        raise ModelError(f"{name} cannot be computed step by step: {describe(error)}") from error
    difference = difference_of(computed, expected, dtype)
    if difference > TOLERANCE[dtype]:
        limit = f"must be at most {TOLERANCE[dtype]:.0e} of the largest logit in {dtype}"
        raise ModelError(
            f"{name}: its rows computed step by step differ from those of one prefill by {difference:.1e},"
            f" {limit}: this model cannot be served by this engine"
        )
    return StepsCheck(hash_of_bits([computed, expected]), torch.equal(computed, expected))


def _compute(runner: Runner, length: int) -> Iterator[_Found]:
    """Yield the rows of each step; all slots are free afterwards."""
    info = runner.info
    length = min(length, info.context_length or length)
    drawn = torch.randint(info.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    first, second = (_Sequence(runner, ids) for ids in drawn.tolist())
    quarter, half = length // 4, length // 2
    slot = _allocate(runner, length)
    if info.plain_only:
        yield first.step(slot, 0, half, 1)
        for end in range(half + 1, length + 1):
            yield first.step(slot, end - 1, end)
        return runner.free(slot)
    earlier = _allocate(runner, length) if runner.max_sequences > 1 else None
    if earlier is not None:
        yield second.step(earlier, 0, length)
    yield first.step(slot, 0, quarter, 1)
    if earlier is not None:
        runner.free(earlier)  # what follows may lie in its memory, before the first positions
    first.step(slot, quarter, half, quarter, shift=1)
    yield first.step(slot, quarter + 1, half + 3)
    yield first.step(slot, half + 2, half + 3)
    runner.retire(slot, half + 2)
    copy = _allocate(runner, 0)
    assert runner.copy_prefix(slot, copy, half + 2)
    yield first.step(copy, half + 2, length)
    first.step(copy, 3, half, 0, shift=1)
    runner.free(copy)
    again = _allocate(runner, 0)
    assert runner.copy_prefix(slot, again, half)
    yield first.step(again, half, length)
    if runner.max_sequences > 1:
        other = _allocate(runner, length)
        batch = [first.input(again, half, length), second.input(other, 0, length)]
        yield _kept(runner.logits(batch)), torch.cat([first.expected[half:], second.expected])
        runner.free(other)
    runner.free(again)
    runner.free(slot)


class _Sequence:
    """The token ids of a sequence, and their logits as computed by one prefill."""

    def __init__(self, runner: Runner, ids: Sequence[int]) -> None:
        self._runner, self._ids = runner, ids
        slot = _allocate(runner, len(ids))
        self.expected = _kept(runner.logits([self.input(slot, 0, len(ids))]))
        runner.free(slot)

    def input(
        self, slot: KvSlot, start: int, end: int, outputs: int | None = None, shift: int = 0
    ) -> ForwardInput:
        """Return the input of the tokens from `start` to `end`; `shift` makes all but the first wrong."""
        assert self._runner.resize(slot, max(end, self._runner.reserved(slot)), start)
        ids, size = self._ids[start:end], self._runner.info.vocab_size
        tokens = [*ids[:1], *((token + shift) % size for token in ids[1:])]
        number = len(tokens) if outputs is None else outputs
        return ForwardInput(slot, start, tokens, number, SamplingParams(), 0, self._ids)

    def step(self, slot: KvSlot, start: int, end: int, outputs: int | None = None, shift: int = 0) -> _Found:
        """Compute an input by itself."""
        item = self.input(slot, start, end, outputs, shift)
        logits = _kept(self._runner.logits([item]))
        return logits, self.expected[end - item.num_outputs : end]


def _kept(logits: Tensor) -> Tensor:
    """Return a copy: the next forward may overwrite the runner's own."""
    return logits.float().cpu().clone()


def _allocate(runner: Runner, num_tokens: int) -> KvSlot:
    slot = runner.allocate(num_tokens)
    assert slot is not None, "there is memory for two short sequences"
    return slot
