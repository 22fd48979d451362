"""Check at load that a row has the same bits in any batch, and name the operator that fails."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from services.engine.base import KvSlot
from services.engine.forward.experts import pad_experts
from services.engine.forward.forward_batch import NO_CAP, Cap, ForwardBatch
from services.engine.forward.linears import PlainLinear
from services.engine.forward.padding import KEY_BLOCK, NO_PADDING, Padding
from services.engine.forward.proven import BoundedLinear, cancelling, is_row_invariant
from services.engine.forward.self_check import (
    Chunk,
    Forward,
    Reference,
    hash_of_bits,
    input_of,
    run_turn,
    separate_cache,
)
from services.engine.forward.shape import AttentionShape
from services.engine.loading.architecture import mlp_width
from services.engine.loading.model import LoadedModel

_ALONE = 12
"""Position of the first row that is computed alone."""
_WAYS: tuple[tuple[tuple[Chunk, ...], ...], ...] = (
    (((0, 0, _ALONE),), *(((0, at, at + 1),) for at in range(_ALONE, 20)), ((0, 20, 24),)),
    (((1, 0, 7), (0, 0, 24)),),
    (((0, 0, 5), (1, 0, 1)), ((1, 1, 24), (0, 5, 13)), ((0, 13, 24),)),
)
"""Ways to compute the first sequence: row by row, as a whole, and in parts beside the second."""
_CONTEXT = KEY_BLOCK + 128
"""Positions that attention is checked at: a block of keys, and a part of the next."""
_BESIDE = 5
"""Most rows of another sequence beside those of a part."""
_MOST_BESIDE = 400
_SHARED_ELEMENTS = 3 * 2**15
"""Elements that torch divides among three threads, if there are as many."""
_EDGES = (
    1,
    15,
    16,
    17,
    31,
    32,
    33,
    64,
    100,
    128,
    129,
    191,
    192,
    193,
    255,
    256,
    257,
    320,
    383,
    384,
    385,
    448,
    511,
)

_ACTIVATIONS = {"transformers.activations", "torch.nn.modules.activation"}


class RowCheck(NamedTuple):
    """Result of the check.

    Attributes:
        fault: First operator in which a row depends on its batch; "" if there is none.
        kernels: Hash of bits that the forward has computed: replicas of a model that agree on it are alike.
    """

    fault: str
    kernels: str


class RowInvariance(NamedTuple):
    """Checks the rows of one forward.

    Attributes:
        paddings: Paddings of attention to try; none if nothing is to be proven.
        is_ragged: The forward calls the model's own modules.
    """

    forward: Forward
    reference: Reference
    loaded: LoadedModel
    paddings: Iterable[Padding]
    is_ragged: bool

    def check(self) -> RowCheck:
        """Take the first padding with which sequences computed in several ways are equal, bit for bit."""
        fault = "attention"
        for padding in self.paddings:
            self._pad(padding)
            fault, computed = self._compare()
            if not fault:
                return RowCheck(fault, hash_of_bits(computed))
        self._pad(NO_PADDING)
        return RowCheck(fault, hash_of_bits(self._all_logits()))

    def _pad(self, padding: Padding) -> None:
        if padding != self.forward.kv_cache.padding:
            self.forward.kv_cache.padding = padding
            pad_experts(self.loaded.model, padding.rows)

    def _compare(self) -> tuple[str, list[Tensor]]:
        """Return the first operator in which a row depends on its batch, and what was computed.

        All ranks of a sharded model return alike, so that they compute the same forwards.
        """
        attended = [self.attended(cap) for cap in self._caps()]
        own = self._linear_fault() if all(map(_are_equal, attended)) else "attention"
        if fault := self._of_all_ranks(own):
            return fault, []
        logits = self._all_logits()
        fault = "" if _are_equal(logits) else self._differing()
        return fault, [*logits, *(first for first, *_ in attended)]

    def _of_all_ranks(self, own: str) -> str:
        """Return the first fault of any rank."""
        if self.loaded.shards == 1:
            return own
        faults = [""] * self.loaded.shards
        dist.all_gather_object(faults, own)
        return next(filter(None, faults), "")

    def _all_logits(self) -> list[Tensor]:
        return [*map(self._logits, _WAYS), self._beside_many()]

    @torch.inference_mode()
    def _caps(self) -> list[Cap]:
        """Return the caps of the scores that the layers use."""
        with separate_cache(self.forward) as slots:
            _, batch = run_turn(((0, 0, 1),), self.forward, slots, self.reference)
        return sorted(batch.caps or {NO_CAP}, key=str)

    def attended(self, cap: Cap = NO_CAP) -> list[Tensor]:
        """Return the attention of the same rows, computed as a whole and in several parts."""
        length, generator = min(_CONTEXT, self.loaded.context_length), torch.Generator().manual_seed(0)
        device, dtype = self.reference.logits.device, self.reference.dtype
        rows = torch.randn(length, attention_shape(self.loaded).width, generator=generator).to(device, dtype)
        return [self._attended(ends, rows, cap) for ends in _parts(length)]

    @torch.inference_mode()
    def _attended(self, ends: Sequence[int], rows: Tensor, cap: Cap) -> Tensor:
        parts = []
        with separate_cache(self.forward, len(rows)) as (slot, other):
            for number, (start, end) in enumerate(pairwise((0, *ends))):
                beside = number % (_BESIDE + 1)
                inputs = [input_of(other, [0] * beside, 0)] if beside else []
                batch = ForwardBatch([*inputs, input_of(slot, [0] * end, start)], rows.device)
                new = torch.cat([rows[:beside], rows[start:end]])
                parts.append(self.forward.attend(batch, new, attention_shape(self.loaded), cap)[beside:])
        return torch.cat(parts)

    @torch.inference_mode()
    def _beside_many(self) -> Tensor:
        """Return the logits of the first sequence beside enough rows that threads share operators."""
        first, second = self.reference.sequences
        width = self.loaded.model.config.get_text_config().hidden_size
        count = min(self.loaded.context_length, _MOST_BESIDE, _SHARED_ELEMENTS // width)
        with separate_cache(self.forward, max(count, len(first))) as (slot, other):
            many = input_of(other, (second * count)[:count], 0, num_outputs=0)
            batch = ForwardBatch([many, input_of(slot, first, 0)], self.reference.logits.device)
            return self.forward(batch)

    def _linear_fault(self) -> str:
        """Return the first of the model's linears, or activations, in which a row depends on its batch."""
        tested, rows = set[tuple[int, ...]](), self.forward.kv_cache.padding.rows
        for name, weight in _weights(self.loaded.model) if self.is_ragged else ():
            if (key := (*weight.shape, *weight.stride())) not in tested and not _is_proven(weight, rows):
                return name
            tested.add(key)
        return self._activation_fault() if self.is_ragged else ""

    def _activation_fault(self) -> str:
        """Return the first activation that depends on the place of a number, as at an end of a share.

        It is computed in float32, whose bits show that.
        """
        config: Any = self.loaded.model.config.get_text_config()
        width = mlp_width(config) // self.loaded.shards
        rows = torch.randn(_MOST_BESIDE, width, generator=torch.Generator().manual_seed(0))
        rows = rows.to(self.reference.logits.device)
        multiple = self.forward.kv_cache.padding.rows
        ends = range(multiple, _MOST_BESIDE, 9 * multiple)
        for name, module in self.loaded.model.named_modules():
            if type(module).__module__ in _ACTIVATIONS:
                expected = module(rows)
                if not all(torch.equal(module(rows[:end]), expected[:end]) for end in ends):
                    return f"{name} ({type(module).__name__})"
                break
        return ""

    def _logits(self, turns: Sequence[Sequence[Chunk]]) -> Tensor:
        """Return the logits of the first sequence, computed turn by turn in a separate KV cache."""
        with separate_cache(self.forward) as slots:
            return torch.cat([self._own_rows(turn, slots) for turn in turns])

    def _own_rows(self, turn: Sequence[Chunk], slots: Sequence[KvSlot]) -> Tensor:
        logits, batch = run_turn(turn, self.forward, slots, self.reference)
        (own,) = (rows for rows, (index, _, _) in zip(batch.rows, turn, strict=True) if index == 0)
        return logits[own.offset : own.offset + own.num_rows]

    def _differing(self) -> str:
        alone = self._rows_of_modules(_WAYS[0][:2], 0)
        together = self._rows_of_modules(_WAYS[1], 7 + _ALONE)
        differing = (name for name, row in alone.items() if not torch.equal(row, together.get(name, row)))
        return next(differing, "a norm, the rotation, the activation, or the head")

    def _rows_of_modules(self, turns: Sequence[Sequence[Chunk]], row: int) -> dict[str, Tensor]:
        """Return one row of the input and output of each module in the last turn, in order of execution."""
        rows: dict[str, Tensor] = {}

        def record(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            for kind, value in (("what precedes ", inputs[0] if inputs else None), ("", output)):
                if isinstance(value, Tensor) and value.dim() == 3 and value.shape[1] > row:
                    rows[f"{kind}{name} ({type(module).__name__})"] = value[0, row].clone()

        leaves = [pair for pair in self.loaded.model.named_modules() if not [*pair[1].children()]]
        hooks = [module.register_forward_hook(partial(record, name)) for name, module in leaves]
        try:
            self._logits(turns)
        finally:
            for hook in hooks:
                hook.remove()
        return rows


def _parts(length: int) -> Iterator[list[int]]:
    """Return the ends of the parts of a sequence: a whole, single rows, and parts of several sizes."""
    yield [length]
    yield sorted({length, *(end for edge in _EDGES for end in (edge, edge + 1) if end < length)})
    for size in (16, 17, 64, 200):
        yield [*range(size // 2, length, size), length]


def _is_proven(weight: Tensor, least: int) -> bool:
    """Check a plain linear of this shape and layout, of `least` rows or more."""
    sample, rows = cancelling(weight)
    if not weight.is_contiguous():
        sample = sample.T.contiguous().T
    return is_row_invariant(BoundedLinear(PlainLinear(sample), least), sample, weight.dtype, rows)


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return the weights, (out, in), that modules of a model multiply by, and those of one of its experts."""
    for name, module in model.named_modules():
        is_transposed = isinstance(module, Conv1D) or getattr(module, "is_transposed", False)
        for parameter in () if isinstance(module, nn.Embedding) else module.parameters(recurse=False):
            weight: Tensor = getattr(parameter, "_local_tensor", parameter)
            weight = weight[0] if weight.dim() == 3 else weight
            if weight.dim() == 2:
                yield f"{name} ({type(module).__name__})", weight.T if is_transposed else weight


def attention_shape(loaded: LoadedModel) -> AttentionShape:
    """Return the heads of a model in this process."""
    config: Any = loaded.model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return AttentionShape(heads // loaded.shards, max(1, kv_heads // loaded.shards), dim)


def _are_equal(tensors: Sequence[Tensor]) -> bool:
    return all(torch.equal(tensors[0], other) for other in tensors[1:])
