"""The runner of real models: a ragged or fused forward of a flat batch, then the head."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from fly.blocks import BLOCK_TOKENS
from fly.messages import ModelInfo
from fly.version import VERSION
from services.common.model_source import model_folder, model_name
from services.engine.base import DelegatedMemoryStats, ForwardInput, KvSlot, RunnerLost, Scores
from services.engine.config import AUTO, ModelConfig, Quantization
from services.engine.forward.attention import MakeAttention, RaggedForward, SequentialAttention
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.fused import FusedForward, can_fuse
from services.engine.forward.int8 import Int8Maker, int8_name
from services.engine.forward.linears import MakeLinear, PlainLinear
from services.engine.forward.packed import LinearMaker, can_pack, pack_model
from services.engine.forward.self_check import Forward, Reference, agrees, check_forward
from services.engine.head.head import Head
from services.engine.loading.device import is_device_lost, prepare_device
from services.engine.loading.forward_costs import weight_bytes
from services.engine.loading.model import DTYPES, LoadedModel, load_model
from services.engine.memory.gpu_memory import create_kv_memory, forward_bytes
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache

logger = logging.getLogger(__name__)


class Parts(NamedTuple):
    """Parts of a runner that a measurement on a GPU replaces; the defaults compute with torch alone."""

    make_attention: MakeAttention = SequentialAttention
    make_head: Callable[[int], Head] = Head


class TorchRunner(DelegatedMemoryStats):
    """A `Runner` that computes with torch.

    Attributes:
        description: Kind of forward (fused or ragged), packed linears, type of attention.
        weight_bytes: Bytes of weights that a forward of one token reads.
    """

    def __init__(
        self,
        info: ModelInfo,
        forward: Forward,
        device: torch.device,
        description: str,
        weight_bytes: int,
        make_head: Callable[[int], Head] = Head,
    ) -> None:
        self.info = info
        self.description = description
        self.weight_bytes = weight_bytes
        self._forward = forward
        self._kv_cache = forward.kv_cache
        super().__init__(self._kv_cache)
        self._device = device
        self._head = make_head(info.vocab_size)

    def allocate(self, num_tokens: int) -> KvSlot | None:
        return self._kv_cache.allocate(num_tokens)

    @torch.inference_mode()
    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        return self._kv_cache.resize(slot, num_tokens, start)

    @torch.inference_mode()
    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        return self._kv_cache.copy_prefix(source, slot, num_tokens)

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        self._head.forget(slot)
        self._kv_cache.retire(slot, num_tokens)

    def free(self, slot: KvSlot) -> None:
        self._head.forget(slot)
        self._kv_cache.free(slot)

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        return self.score(self.logits(batch), batch)

    @torch.inference_mode()
    def logits(self, batch: Sequence[ForwardInput]) -> Tensor:
        """Compute the first half of a forward: logits of all output rows, (outputs, embedding rows)."""
        self._head.start(batch)
        with _lost_with_device():
            return self._forward(ForwardBatch(batch, self._device))

    @torch.inference_mode()
    def score(self, logits: Tensor, batch: Sequence[ForwardInput]) -> list[Scores]:
        """Compute the second half of a forward: the head's scores of these logits."""
        with _lost_with_device():
            return self._head(logits, batch)


@contextmanager
def _lost_with_device() -> Iterator[None]:
    """Raise `RunnerLost` for an error of the device: all later operations on it would fail as well."""
    try:
        yield
    except RuntimeError as error:
        if not is_device_lost(error):
            raise
        raise RunnerLost(f"the device failed: {error}") from error


def load_runner(
    config: ModelConfig,
    shards: int = 1,
    when_loaded: Callable[[], None] = lambda: None,
    smallest: Callable[[int], int] = lambda number: number,
    parts: Parts | None = None,
) -> TorchRunner:
    """Load a model, or this process's shard of it, into a runner, and check it against plain transformers.

    Every one of the `shards` ranks that share the model must call this function. `when_loaded` is called
    after the weights are loaded, before the first forward; `smallest` returns the smallest number of all
    ranks, which have as many KV positions each. `parts` replaces the parts that compute with torch.

    Raises:
        ModelError: The folder or its architecture is not supported, or the device is not available.
    """
    assert config.model is not None
    device, dtype = config.device, config.dtype
    prepare_device(device)
    torch.set_num_threads(config.num_threads)
    folder = model_folder(config.model)
    loaded = load_model(folder, dtype, device, shards)
    when_loaded()
    # NOTE: the wider type is chosen by measurement, so ranks could differ.
    wider = wider_dtype(DTYPES[dtype], device) if shards == 1 else None
    is_measured = config.kv_tokens == AUTO
    kv_tokens = BLOCK_TOKENS if is_measured else config.fixed_kv_tokens
    kv_cache = make_kv_cache(kv_tokens, config.max_sequences, wider, device)
    read_bytes = weight_bytes(loaded.model)
    if config.quantization is Quantization.INT8:
        read_bytes //= loaded.model.dtype.itemsize
    parts = parts or Parts()
    forward, description = choose_forward(loaded, kv_cache, device, config.quantization, parts.make_attention)
    room_bytes = forward_bytes(loaded.model, config.batch_tokens)
    create_kv_memory(forward, torch.cuda, room_bytes, smallest if is_measured else None)
    logger.info("%s: %s", config.model, description)
    info = ModelInfo(
        role=config.role,
        model_id=model_name(config.model),
        weight_fingerprint=_fingerprint(loaded, config.quantization),
        architecture=loaded.architecture,
        token_map_hash=loaded.token_map_hash,
        vocab_size=loaded.vocab_size,
        context_length=min(loaded.context_length, config.max_model_len or loaded.context_length),
        dtype=dtype.value,
        shards=shards,
        kv_capacity=forward.kv_cache.kv_capacity,
        version=VERSION,
        quantization="" if config.quantization is Quantization.NONE else config.quantization.value,
        max_sequences=config.max_sequences,
    )
    return TorchRunner(info, forward, torch.device(device), description, read_bytes, parts.make_head)


def make_kv_cache(kv_tokens: int, max_sequences: int, dtype: torch.dtype | None, device: str) -> KvCache:
    """Return shared blocks on a GPU; contiguous memory on a CPU, where gathering costs more than it saves."""
    if torch.device(device).type == "cuda":
        return PagedKvCache(kv_tokens, max_sequences)
    return ContiguousKvCache(kv_tokens, max_sequences, dtype)


def _fingerprint(loaded: LoadedModel, quantization: Quantization) -> str:
    """Return the weights' fingerprint; quantized weights are other weights."""
    if quantization is Quantization.NONE:
        return loaded.weight_fingerprint
    return f"{loaded.weight_fingerprint}-{int8_name()}"


def choose_forward(
    loaded: LoadedModel,
    kv_cache: KvCache,
    device: str,
    quantization: Quantization = Quantization.NONE,
    make_attention: MakeAttention = SequentialAttention,
) -> tuple[Forward, str]:
    """Return the fused forward if there is one that agrees with transformers, else the ragged one.

    Weights are quantized after the comparison, which they would not pass.
    """
    model, reference = loaded.model, Reference(loaded.model, loaded.vocab_size)
    # NOTE: the linears of a sharded model must stay those of transformers, which hold its parts.
    is_whole = loaded.shards == 1
    build = _Build(model, kv_cache, is_whole and can_pack(model.dtype, device), quantization, make_attention)
    computing = str(kv_cache.dtype or model.dtype).removeprefix("torch.")
    if is_whole and can_fuse(model):
        fused, packing = build.fused(reference)
        if fused is not None:
            return fused, f"fused forward, {packing}, computing in {computing}"
        logger.warning("%s: the fused forward differs from transformers: not used", loaded.architecture)
    ragged, packing = build.ragged(reference, loaded.architecture)
    return ragged, f"ragged forward, {packing}, attention in {computing}"


class _Build(NamedTuple):
    """Builds the forwards of a model, each with a description of its linears."""

    model: PreTrainedModel
    kv_cache: KvCache
    packs: bool
    quantization: Quantization
    make_attention: MakeAttention

    def fused(self, reference: Reference) -> tuple[FusedForward | None, str]:
        """Return the fused forward; None if it differs from the reference."""
        rows_dtype = self.kv_cache.dtype if self.packs else None
        if self.quantization is Quantization.INT8:
            is_equal = agrees(self._fuse(PlainLinear, None), reference)
            make_int8 = Int8Maker()
            return (self._fuse(make_int8, rows_dtype) if is_equal else None), make_int8.describe()
        make_linear = LinearMaker(self.kv_cache.dtype, self._num_layers) if self.packs else None
        forward = self._fuse(make_linear or PlainLinear, rows_dtype)
        return (forward if agrees(forward, reference) else None), _describe(make_linear)

    def ragged(self, reference: Reference, name: str) -> tuple[RaggedForward, str]:
        """Return the ragged forward, which must equal the reference."""
        forward, make_linear = RaggedForward(self.model, self.kv_cache, self.make_attention), None
        is_int8 = self.quantization is Quantization.INT8
        if self.packs and self.model.dtype is torch.bfloat16 and not is_int8:
            make_linear = LinearMaker(num_layers=self._num_layers)
            pack_model(self.model, make_linear, make_linear.make_copy)
        check_forward(forward, reference, name)
        if is_int8:
            make_int8 = Int8Maker()
            pack_model(self.model, make_int8)
            return forward, make_int8.describe()
        return forward, _describe(make_linear)

    @property
    def _num_layers(self) -> int:
        return int(self.model.config.get_text_config().num_hidden_layers)

    def _fuse(self, make_linear: MakeLinear, rows_dtype: torch.dtype | None) -> FusedForward:
        return FusedForward(self.model, self.kv_cache, make_linear, rows_dtype, self.make_attention)


def _describe(make_linear: LinearMaker | None) -> str:
    return make_linear.describe() if make_linear is not None else "nothing packed"


def wider_dtype(dtype: torch.dtype, device: str) -> torch.dtype | None:
    """Return float32 if this CPU computes faster in it than in `dtype`, as for few rows without matrix units.

    The weights stay in `dtype`; only the activations are wider.
    """
    if device != "cpu" or dtype is torch.float32:
        return None
    return torch.float32 if _attention_s(torch.float32) < _attention_s(dtype) else None


def _attention_s(dtype: torch.dtype) -> float:
    """Measure seconds for a decode and a verification over 256 positions, the minimum of several runs."""
    keys = torch.zeros(1, 4, 256, 64, dtype=dtype)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        for num_rows in (1, 16):
            F.scaled_dot_product_attention(keys[:, :, :num_rows], keys, keys)
        best = min(best, time.perf_counter() - start)
    return best
