"""The proof at load that an architecture is computed as transformers computes it, rollback included."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fly.errors import ModelError, describe
from fly.request import SamplingParams
from services.engine.base import Slot, Work
from services.engine.forward.plan import Plan
from services.engine.memory.arena import KvArena

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 6e-2}
"""Largest difference of logits, relative to the largest logit."""
_CLOSE_SHARE = {torch.float32: 1.0, torch.bfloat16: 0.75}
"""Share of rows that must lie within it: in bfloat16, rounding can send a token to another expert."""
_LENGTH = 24
_Piece = tuple[int, int, int]
"""A sequence's index, and the positions from where to where it is computed."""
_TURNS: tuple[tuple[_Piece, ...], ...] = (
    ((0, 0, 9), (1, 0, 5)),
    ((0, 9, 14), (1, 5, 6)),
    ((0, 11, 16), (1, 6, 18)),  # the first rolls back to 11
    ((1, 12, 24),),
    ((0, 16, 17), (1, 3, 24)),  # the second rolls back to 3
    ((0, 17, 24),),
)


class Forward(Protocol):
    """Logits of the output rows of a plan.

    Attributes:
        arena: Its KV memory; may be exchanged between forwards.
    """

    arena: KvArena

    def __call__(self, plan: Plan) -> Tensor:
        """(outputs, embedding rows)."""


class Comparison(NamedTuple):
    """How a forward compares with the reference.

    Attributes:
        difference: Of logits, relative to the largest.
        has_same_choices: Every clear choice is equal.
        tolerance: What rounding may explain.
        windows: Positions that the layers' attention was told to see; None is all.
    """

    difference: float
    has_same_choices: bool
    tolerance: float
    windows: frozenset[int | None]

    @property
    def is_close(self) -> bool:
        return self.difference <= self.tolerance


class Reference:
    """What plain transformers answers for two sequences; made before the model is changed.

    Attributes:
        windows: Positions that its layers' attention sees; None is all.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        """Computes the answers.

        Raises:
            ModelError: Token ids alone are not enough for the model.
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
    """Runs both sequences ragged, with rollbacks, against the reference.

    Raises:
        ModelError: It cannot be computed, the logits differ by more than rounding, or layers see something
            else than the configuration says: a window is longer than this check.
    """
    with _rejecting(name):
        found = compare(forward, reference)
    if not found.is_close:
        difference = f"{found.difference:.1e}"
        raise ModelError(f"{name}: ragged attention differs from transformers' by {difference}: not served")
    if found.windows != reference.windows:
        differ = f"attention windows of {_names(found.windows)}, not {_names(reference.windows)}"
        raise ModelError(f"{name}: its layers ask for {differ} as its configuration: not served")


def agrees(forward: Forward, reference: Reference) -> bool:
    """Whether logits are equal up to rounding, and every clear choice is equal."""
    found = compare(forward, reference)
    return found.is_close and found.has_same_choices and found.windows == reference.windows


def compare(forward: Forward, reference: Reference) -> Comparison:
    """Runs the reference's sequences in an arena of their own."""
    served, forward.arena = forward.arena, forward.arena.like(4 * _LENGTH, 2)
    try:
        slots = [slot for slot in map(forward.arena.allocate, (_LENGTH, _LENGTH)) if slot is not None]
        turns = [_run(turn, forward, slots, reference) for turn in _TURNS]
    finally:
        forward.arena = served
    computed, expected, windows = zip(*turns, strict=True)
    seen = frozenset[int | None]().union(*windows)
    return _compare(torch.cat(computed), torch.cat(expected), reference.dtype, seen)


def _run(
    turn: Sequence[_Piece], forward: Forward, slots: Sequence[Slot], reference: Reference
) -> tuple[Tensor, Tensor, set[int | None]]:
    """One turn: logits computed and expected, and what the layers' attention sees."""
    work = [_work(reference, slots[index], index, start, end) for index, start, end in turn]
    plan = Plan(work, reference.logits.device)
    with torch.inference_mode():
        computed = forward(plan).float()
    expected = torch.cat([reference.logits[index, start:end] for index, start, end in turn])
    return computed, expected, plan.windows


def _compare(
    computed: Tensor, expected: Tensor, dtype: torch.dtype, windows: frozenset[int | None]
) -> Comparison:
    scale = expected.abs().max()
    gaps = ((computed - expected).abs().amax(-1) / scale).nan_to_num(nan=float("inf")).sort().values
    difference = gaps[math.ceil(_CLOSE_SHARE[dtype] * len(gaps)) - 1].item()
    top = expected.topk(2).values
    is_clear = top[:, 0] - top[:, 1] > 2 * TOLERANCE[dtype] * scale
    is_same = computed.argmax(-1) == expected.argmax(-1)
    return Comparison(difference, bool((is_same | ~is_clear).all()), TOLERANCE[dtype], windows)


def _work(reference: Reference, slot: Slot, index: int, start: int, end: int) -> Work:
    ids = reference.sequences[index]
    return Work(slot, start, ids[start:end], end - start, SamplingParams(), 0, ids)


def _windows(config: Any) -> frozenset[int | None]:
    """Of all layers, as the configuration says."""
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    if not layers:
        return frozenset({window})
    return frozenset(window if layer == "sliding_attention" else None for layer in layers)


def _names(windows: frozenset[int | None]) -> str:
    return " and ".join(sorted("all positions" if window is None else str(window) for window in windows))


@contextmanager
def _rejecting(name: str) -> Iterator[None]:
    """Whatever a forward raises rejects the model: a size that does not fit, an input that it misses."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{name} cannot be computed: {describe(error)}") from error
