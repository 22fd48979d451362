"""Check at load that a model is computed as transformers computes it, including rollbacks."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flyserve.core.errors import ModelError, describe
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, KvSlot
from services.engine.forward.forward_batch import NO_CAP, Cap, ForwardBatch
from services.engine.forward.padding import KEY_BLOCK
from services.engine.forward.shape import AttentionShape
from services.engine.memory.kv_cache import KvCache

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 6e-2}
"""Largest difference of logits, relative to the largest logit."""
_CLOSE_SHARE = {torch.float32: 1.0, torch.bfloat16: 0.75}
"""Share of rows that must be within it: in bfloat16, rounding can route a token to another expert."""
_LENGTH = 24
Chunk = tuple[int, int, int]
"""Index of a sequence, first position to compute, and the position after the last."""
_TURNS: tuple[tuple[Chunk, ...], ...] = (
    ((0, 0, 9), (1, 0, 5)),
    ((0, 9, 14), (1, 5, 6)),
    ((0, 11, 16), (1, 6, 18)),  # the first rolls back to 11
    ((1, 12, 24),),
    ((0, 16, 17), (1, 3, 24)),  # the second rolls back to 3
    ((0, 17, 24),),
)


class Forward(Protocol):
    """Computes the logits of a batch's output rows.

    Attributes:
        kv_cache: Its KV memory; may be replaced between forwards.
    """

    kv_cache: KvCache

    def __call__(self, batch: ForwardBatch) -> Tensor:
        """Return logits, (outputs, embedding rows)."""

    def attend(
        self, batch: ForwardBatch, projected: Tensor, shape: AttentionShape, cap: Cap = NO_CAP
    ) -> Tensor:
        """Return the attention of the first layer, (rows, ...), for rows of a projection, (rows, width)."""


class Comparison(NamedTuple):
    """Result of comparing a forward with the reference.

    Attributes:
        difference: Difference of logits, relative to the largest logit.
        is_close: Rounding explains the difference.
        has_same_choices: The most likely token is equal wherever it is clearly the most likely.
        windows: Attention windows that the layers requested, in positions; None is all positions.
    """

    difference: float
    is_close: bool
    has_same_choices: bool
    windows: frozenset[int | None]


class Reference:
    """Logits that plain transformers computes for two sequences; made before the model is changed.

    Attributes:
        sequences: Token ids of both.
        dtype: Type of the logits as computed.
        logits: Logits of all positions, (2, length, embedding rows), float32.
        windows: Attention windows of the layers, in positions; None is all positions.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        """Compute the logits.

        Raises:
            ModelError: The model needs other inputs than token ids.
        """
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randint(vocab_size, (2, _LENGTH), generator=generator)
        self.sequences: list[list[int]] = drawn.tolist()
        with torch.inference_mode(), _rejecting(type(model).__name__):
            logits: Tensor = model(input_ids=drawn.to(model.device), use_cache=False).logits
        self.dtype = logits.dtype
        self.logits = logits.float()
        self.windows = _windows(model.config.get_text_config())


def check_forward(forward: Forward, reference: Reference, name: str) -> None:
    """Compute both sequences with `forward`, with rollbacks, and compare with the reference.

    Raises:
        ModelError: The model cannot be computed, the logits differ by more than rounding, or the layers
            use other attention windows than the configuration has (a window may be longer than this check).
    """
    with _rejecting(name):
        found = compare(forward, reference)
    if not found.is_close:
        difference = f"{found.difference:.1e}"
        raise ModelError(
            f"{name}: ragged attention differs from transformers' by {difference}: not supported"
        )
    if found.windows != reference.windows:
        differ = f"attention windows of {_names(found.windows)}, not {_names(reference.windows)}"
        raise ModelError(f"{name}: its layers use {differ} as in its configuration: not supported")


def agrees(forward: Forward, reference: Reference) -> bool:
    """Check that logits are equal up to rounding, and that every clear choice is equal."""
    found = compare(forward, reference)
    return found.is_close and found.has_same_choices and found.windows == reference.windows


def compare(forward: Forward, reference: Reference) -> Comparison:
    """Compute the reference's sequences in a separate KV cache."""
    with separate_cache(forward) as slots:
        turns = [_run(turn, forward, slots, reference) for turn in _TURNS]
    computed, expected, windows = zip(*turns, strict=True)
    seen = frozenset[int | None]().union(*windows)
    return _compare(torch.cat(computed), torch.cat(expected), reference.dtype, seen)


@contextmanager
def separate_cache(forward: Forward, length: int = _LENGTH) -> Iterator[list[KvSlot]]:
    """Give a forward an empty KV cache for a while, with slots for two sequences of this length."""
    original, forward.kv_cache = forward.kv_cache, forward.kv_cache.like(4 * (length + KEY_BLOCK), 2)
    try:
        yield [slot for slot in map(forward.kv_cache.allocate, (length, length)) if slot is not None]
    finally:
        forward.kv_cache = original


def run_turn(
    turn: Sequence[Chunk], forward: Forward, slots: Sequence[KvSlot], reference: Reference
) -> tuple[Tensor, ForwardBatch]:
    """Compute one turn; return its logits, and the batch."""
    inputs = [input_of(slots[index], reference.sequences[index][:end], start) for index, start, end in turn]
    batch = ForwardBatch(inputs, reference.logits.device)
    with torch.inference_mode():
        return forward(batch), batch


def _run(
    turn: Sequence[Chunk], forward: Forward, slots: Sequence[KvSlot], reference: Reference
) -> tuple[Tensor, Tensor, set[int | None]]:
    """Run one turn; return the computed and expected logits, and the attention windows requested."""
    computed, batch = run_turn(turn, forward, slots, reference)
    expected = torch.cat([reference.logits[index, start:end] for index, start, end in turn])
    return computed.float(), expected, batch.windows


def difference_of(computed: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    """Return the largest difference in the rows that must be close, relative to the largest logit."""
    gaps = (computed - expected).abs().amax(-1) / expected.abs().max()
    gaps = gaps.nan_to_num(nan=float("inf")).sort().values
    return gaps[math.ceil(_CLOSE_SHARE[dtype] * len(gaps)) - 1].item()


def hash_of_bits(tensors: Sequence[Tensor]) -> str:
    """Return a hash of all bits of some tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def _compare(
    computed: Tensor, expected: Tensor, dtype: torch.dtype, windows: frozenset[int | None]
) -> Comparison:
    scale, difference = expected.abs().max(), difference_of(computed, expected, dtype)
    top = expected.topk(2).values
    is_clear = top[:, 0] - top[:, 1] > 2 * TOLERANCE[dtype] * scale
    is_same = computed.argmax(-1) == expected.argmax(-1)
    return Comparison(
        difference=difference,
        is_close=difference <= TOLERANCE[dtype],
        has_same_choices=bool((is_same | ~is_clear).all()),
        windows=windows,
    )


def input_of(slot: KvSlot, ids: Sequence[int], start: int, num_outputs: int | None = None) -> ForwardInput:
    """Return the input of a sequence from a position on; by default all its rows are outputs."""
    return ForwardInput(
        slot=slot,
        start=start,
        tokens=ids[start:],
        num_outputs=len(ids) - start if num_outputs is None else num_outputs,
        sampling=SamplingParams(),
        prompt_length=0,
        history=ids,
    )


def _windows(config: Any) -> frozenset[int | None]:
    """Return the attention windows of all layers according to the configuration."""
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    if not layers:
        return frozenset({window})
    return frozenset(window if layer == "sliding_attention" else None for layer in layers)


def _names(windows: frozenset[int | None]) -> str:
    return " and ".join(sorted("all positions" if window is None else str(window) for window in windows))


@contextmanager
def _rejecting(name: str) -> Iterator[None]:
    """Convert any exception of a forward, such as a size mismatch or a missing input, to `ModelError`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{name} cannot be computed: {describe(error)}") from error
