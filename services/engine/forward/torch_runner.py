"""The runner of torch: a ragged or fused forward of a flat batch."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flyserve.core.blocks import BLOCK_TOKENS
from flyserve.core.errors import ModelError
from flyserve.core.messages import ModelInfo
from flyserve.core.version import VERSION
from services.common.machine.machine import has_matrix_units
from services.common.model_source import model_folder, model_name
from services.engine.base import DelegatedMemoryStats, ForwardInput, KvSlot
from services.engine.config import AUTO, ModelConfig, Quantization, is_widened
from services.engine.forward.choice import choose_forward
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.fused import FusedForward
from services.engine.forward.graphed import CudaGraphs, GraphedForward
from services.engine.forward.int8 import int8_name
from services.engine.forward.invariance import RowCheck, attention_shape
from services.engine.forward.padding import paddings
from services.engine.forward.self_check import Forward
from services.engine.loading.device import lost_with_device, prepare_device
from services.engine.loading.forward_costs import weight_bytes
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

    def allocate(self, num_tokens: int) -> KvSlot | None:
        return self._kv_cache.allocate(num_tokens)

    @torch.inference_mode()
    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        return self._kv_cache.resize(slot, num_tokens, start)

    @torch.inference_mode()
    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        return self._kv_cache.copy_prefix(source, slot, num_tokens)

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        self._kv_cache.retire(slot, num_tokens)

    def free(self, slot: KvSlot) -> None:
        self._kv_cache.free(slot)

    @torch.inference_mode()
    def logits(self, batch: Sequence[ForwardInput]) -> Tensor:
        with lost_with_device():
            return self._forward(ForwardBatch(batch, self._device))


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
    torch.set_num_threads(config.num_threads)
    folder = model_folder(config.model)
    loaded = load_model(folder, dtype, device, shards)
    when_loaded()
    is_wider = device == "cpu" and is_widened(dtype, shards, has_matrix_units())
    wider = torch.float32 if is_wider else None
    is_measured = config.kv_tokens == AUTO
    kv_tokens = BLOCK_TOKENS if is_measured else config.fixed_kv_tokens
    kv_cache = make_kv_cache(kv_tokens, config.max_sequences, wider, device)
    if config.row_invariant != "off" and isinstance(kv_cache, ContiguousKvCache):
        kv_cache.padding = next(paddings(attention_shape(loaded), wider or DTYPES[dtype]))
    read_bytes = weight_bytes(loaded.model)
    if config.quantization is Quantization.INT8:
        read_bytes //= loaded.model.dtype.itemsize
    forward, description, rows = choose_forward(
        loaded, kv_cache, device, config.quantization, config.row_invariant != "off"
    )
    checked = rows.check()
    room_bytes = forward_bytes(loaded.model, config.batch_tokens)
    create_kv_memory(forward, torch.cuda, room_bytes, smallest if is_measured else None)
    forward, description = _with_graphs(forward, description, torch.device(device))
    logger.info("%s: %s, row_invariant: %s", config.model, description, _result(config, checked))
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
        row_invariant=not checked.fault,
        kernels=checked.kernels,
    )
    return TorchRunner(info, forward, torch.device(device), description, read_bytes)


def _with_graphs(forward: Forward, description: str, device: torch.device) -> tuple[Forward, str]:
    """Return a forward that is started as CUDA graphs, with its description, if this one can be."""
    kv_cache = forward.kv_cache
    if isinstance(forward, FusedForward) and isinstance(kv_cache, PagedKvCache) and forward.attends_at_once:
        return GraphedForward(forward, kv_cache, device, CudaGraphs()), f"{description}, CUDA graphs"
    return forward, description


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


def _result(config: ModelConfig, checked: RowCheck) -> str:
    """Describe the result of the check of rows.

    Raises:
        ModelError: The configuration demands row invariance, and there is a fault.
    """
    if config.row_invariant == "on" and checked.fault:
        raise ModelError(
            f"row_invariant: is on, but the result of a row depends on its batch in {checked.fault}:"
            " set it to auto or off, or use another model or device"
        )
    return f"false ({checked.fault})" if checked.fault else "true"
