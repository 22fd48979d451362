"""A forward whose layers are captured and replayed computes the same bits, with any batch in between."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput
from services.engine.forward import graphed, varlen_attention
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.fused import FusedForward
from services.engine.forward.graphed import Capture, GraphedForward
from services.engine.forward.linears import PlainLinear
from services.engine.forward.proven import BoundedLinear
from services.engine.loading.model import load_model
from services.engine.memory.paged_kv_cache import PagedKvCache
from tests.unit.engine.test_varlen_attention import Turn, kernel

CPU = torch.device("cpu")
TURNS: list[Turn] = [
    [(0, 40), (1, 3)],
    [(0, 1), (1, 1), (2, 5)],
    [(2, 1), (0, 1), (1, 1)],
    [(3, 1)],
    [(1, 4), (3, 16), (0, 2)],
    [(0, 1), (1, 1), (2, 1), (3, 1)],
]


class Memory:
    """Captures nothing: what repeats the work calls it again.

    Attributes:
        captured: Number of captures.
    """

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda rows: rows) -> None:
        self.captured = 0
        self._change = change

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Tensor]]:
        self.captured += 1
        return run(), lambda: self._change(run())


@pytest.fixture
def make(
    monkeypatch: pytest.MonkeyPatch, model_folder: Callable[[str], Path]
) -> Callable[[Capture | None], tuple[Any, PagedKvCache]]:
    """Return what makes a forward over memory in blocks, by torch's kernel; with graphs if it captures."""

    def padded(queries: Tensor, *rest: Any, **options: Any) -> Tensor:
        """Attend as the kernel does: it leaves rows without a sequence as they are in memory."""
        found = kernel(queries, *rest, **options)
        return torch.cat([found, found.new_full((len(queries) - len(found), *found.shape[1:]), torch.nan)])

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", padded)
    monkeypatch.setattr(
        "services.engine.forward.fused.make_attention",
        lambda batch, kv_cache: varlen_attention.VarlenAttention(batch, kv_cache),
    )
    model = load_model(model_folder("llama"), "bfloat16").model

    def make_forward(capture: Capture | None) -> tuple[Any, PagedKvCache]:
        kv_cache = PagedKvCache(512, 4)
        # NOTE: products of 64 rows: the number of rows of a batch must not change a row's bits.
        forward = FusedForward(model, kv_cache, lambda weight: BoundedLinear(PlainLinear(weight), 64, 64))
        return (forward if capture is None else GraphedForward(forward, kv_cache, CPU, capture)), kv_cache

    return make_forward


@torch.inference_mode()
def logits_of(made: tuple[Any, PagedKvCache], turns: list[Turn]) -> list[Tensor]:
    """Return the logits of all turns."""
    forward, kv_cache = made
    slots, lengths, found = [kv_cache.allocate(0) for _ in range(4)], [0] * 4, []
    for number, turn in enumerate(turns):
        inputs = []
        for index, rows in turn:
            start = lengths[index]
            assert kv_cache.resize(slots[index], start + rows, start)
            tokens = [(7 * index + start + each) % 90 for each in range(rows)]
            outputs = rows if number % 2 else 1
            inputs.append(ForwardInput(slots[index], start, tokens, outputs, SamplingParams(), 0, ()))
            lengths[index] += rows
        found.append(forward(ForwardBatch(inputs)))
    return found


def is_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_replayed_layers_have_the_bits_of_a_plain_forward(make: Any) -> None:
    memory = Memory()
    found, expected = logits_of(make(memory), TURNS), logits_of(make(None), TURNS)
    assert is_equal(found, expected)
    assert memory.captured == 5  # 64, 8, 4, 1 and 32 rows; all have fewer keys than the smallest graph


def test_a_batch_beyond_the_largest_graph_is_computed_without_one(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphed, "_MOST_KEYS", 45)
    memory = Memory()
    found, expected = logits_of(make(memory), TURNS), logits_of(make(None), TURNS)
    assert is_equal(found, expected)
    assert memory.captured == 2  # 43 keys, and one of a sequence alone; all other batches have more


def test_graphs_that_fail_or_compute_something_else_are_left_alone(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], Tensor]]:
        raise RuntimeError("operation not permitted when stream is capturing")

    expected = logits_of(make(None), TURNS)
    for capture, fault in ((fail, "not permitted"), (Memory(lambda rows: rows * 2), "its result differs")):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert is_equal(logits_of(make(capture), TURNS), expected)
        (record,) = caplog.records
        assert fault in record.getMessage()
