"""The runner of real models: a ragged or fused forward of a flat batch, then the head."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from fly.messages import ModelInfo
from fly.version import VERSION
from services.common.model_source import model_folder, model_name
from services.engine.base import DelegatedMemoryStats, ForwardInput, KvSlot, RunnerLost, Scores
from services.engine.config import AUTO, ModelConfig, Quantization
from services.engine.forward.attention import RaggedForward
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.fused import FusedForward, can_fuse
from services.engine.forward.int8 import Int8Maker, int8_name
from services.engine.forward.linears import PlainLinear
from services.engine.forward.packed import LinearMaker, can_pack, pack_model
from services.engine.forward.plan_buffer import PlanBuffer
from services.engine.forward.self_check import Forward, Reference, agrees, check_forward
from services.engine.head.head import Head
from services.engine.loading.bandwidth import Bandwidth, measure_forward_s, measure_limit, weight_bytes
from services.engine.loading.device import is_device_lost, prepare_device
from services.engine.loading.model import DTYPES, LoadedModel, load_model
from services.engine.memory.gpu_memory import create_kv_memory, forward_bytes
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache

logger = logging.getLogger(__name__)


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
    ) -> None:
        self.info = info
        self.description = description
        self.weight_bytes = weight_bytes
        self._forward = forward
        self._kv_cache = forward.kv_cache
        super().__init__(self._kv_cache)
        self._device = device
        self._buffer = PlanBuffer(device)
        self._head = Head(info.vocab_size)

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
            return self._forward(ForwardBatch(batch, self._buffer))

    @torch.inference_mode()
    def score(self, logits: Tensor, batch: Sequence[ForwardInput]) -> list[Scores]:
        """Compute the second half of a forward: the head's scores of these logits."""
        with _lost_with_device():
            return self._head(logits, batch)

    def measure_bandwidth(self) -> Bandwidth:
        """Measure memory bandwidth, used and possible; takes a fraction of a second."""
        forward_s = self.info.costs.decode_s if self.info.costs else measure_forward_s(self)
        limit = measure_limit(DTYPES[self.info.dtype], self._device)
        return Bandwidth(self.weight_bytes, forward_s, limit_bytes_per_s=limit)


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
) -> TorchRunner:
    """Load a model, or this process's shard of it, into a runner, and check it against plain transformers.

    Every one of the `shards` ranks that share the model must call this function. `when_loaded` is called
    after the weights are loaded, before the first forward; `smallest` returns the smallest number of all
    ranks, which have as many KV positions each.

    Raises:
        ModelError: The folder or its architecture is not supported, or the device is not available.
    """
    assert config.model is not None
    device, dtype = config.device, config.dtype
    prepare_device(device)
    torch.set_num_threads(config.threads)
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
    forward, description = choose_forward(loaded, kv_cache, device, config.quantization)
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
        context_length=loaded.context_length,
        dtype=dtype.value,
        shards=shards,
        kv_capacity=forward.kv_cache.kv_capacity,
        version=VERSION,
        quantization="" if config.quantization is Quantization.NONE else config.quantization.value,
        max_sequences=config.max_sequences,
    )
    return TorchRunner(info, forward, torch.device(device), description, read_bytes)


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
    loaded: LoadedModel, kv_cache: KvCache, device: str, quantization: Quantization = Quantization.NONE
) -> tuple[Forward, str]:
    """Return the fused forward if there is one that agrees with transformers, else the ragged one.

    Weights are quantized after the comparison, which they would not pass.
    """
    model = loaded.model
    reference = Reference(model, loaded.vocab_size)
    # NOTE: the linears of a sharded model must stay those of transformers, which hold its parts.
    is_whole = loaded.shards == 1
    packs = is_whole and can_pack(model.dtype, device)
    is_int8 = quantization is Quantization.INT8
    num_layers = model.config.get_text_config().num_hidden_layers
    computing = str(kv_cache.dtype or model.dtype).removeprefix("torch.")
    make_linear: LinearMaker | Int8Maker | None = None
    if is_whole and can_fuse(model):
        make_linear = LinearMaker(kv_cache.dtype, num_layers) if packs and not is_int8 else None
        rows_dtype = kv_cache.dtype if packs else None
        fused = FusedForward(model, kv_cache, make_linear or PlainLinear, None if is_int8 else rows_dtype)
        if agrees(fused, reference):
            if is_int8:
                make_linear = Int8Maker()
                fused = FusedForward(model, kv_cache, make_linear, rows_dtype)
            return fused, _describe("fused", make_linear, f"computing in {computing}")
        logger.warning("%s: the fused forward differs from transformers: not used", loaded.architecture)
    ragged, make_linear = RaggedForward(model, kv_cache), None
    if packs and model.dtype is torch.bfloat16 and not is_int8:
        make_linear = LinearMaker(num_layers=num_layers)
        pack_model(model, make_linear, make_linear.make_copy)
    check_forward(ragged, reference, loaded.architecture)
    if is_int8:
        make_linear = Int8Maker()
        pack_model(model, make_linear)
    return ragged, _describe("ragged", make_linear, f"attention in {computing}")


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


def _describe(kind: str, make_linear: LinearMaker | Int8Maker | None, types: str) -> str:
    packing = make_linear.describe() if make_linear is not None else "nothing packed"
    return f"{kind} forward, {packing}, {types}"
