"""The runner of real models: a flat batch through ragged or fused forward, then the head."""

import logging
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fly.errors import ModelError
from fly.messages import ModelInfo
from fly.version import VERSION
from services.common.model_source import model_folder
from services.engine.base import Scores, Slot, Work
from services.engine.config import ModelConfig
from services.engine.forward.attention import RaggedForward
from services.engine.forward.fused import FusedForward, can_fuse
from services.engine.forward.linears import PlainLinear
from services.engine.forward.packed import LinearMaker, can_pack, pack_model
from services.engine.forward.plan import Plan
from services.engine.forward.self_check import Forward, Reference, agrees, check_forward
from services.engine.head.head import Head
from services.engine.loading.bandwidth import Bandwidth, measure_forward_s, measure_limit, weight_bytes
from services.engine.loading.model import DTYPES, LoadedModel, load_model
from services.engine.memory.arena import ContiguousArena, KvArena
from services.engine.memory.figures import MemoryFigures
from services.engine.memory.paged_arena import PagedArena

logger = logging.getLogger(__name__)


class TorchRunner(MemoryFigures):
    """A `Runner` over torch.

    Attributes:
        info: What it serves.
        description: How it computes: fused or ragged, what is packed, the type of attention.
        weight_bytes: What a forward of one token reads of them.
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
        self._arena = forward.arena
        super().__init__(self._arena)
        self._device = device
        self._head = Head(info.vocab_size)

    def allocate(self, num_tokens: int) -> Slot | None:
        return self._arena.allocate(num_tokens)

    @torch.inference_mode()
    def resize(self, slot: Slot, num_tokens: int, start: int | None = None) -> bool:
        return self._arena.resize(slot, num_tokens, start)

    @torch.inference_mode()
    def copy_prefix(self, source: Slot, slot: Slot, num_tokens: int) -> bool:
        return self._arena.copy_prefix(source, slot, num_tokens)

    def retire(self, slot: Slot, num_tokens: int) -> None:
        self._arena.retire(slot, num_tokens)

    def free(self, slot: Slot) -> None:
        self._arena.free(slot)

    def forward(self, batch: Sequence[Work]) -> list[Scores]:
        return self.score(self.logits(batch), batch)

    @torch.inference_mode()
    def logits(self, batch: Sequence[Work]) -> Tensor:
        """The first half of a forward: logits of all output rows, (outputs, embedding rows)."""
        return self._forward(Plan(batch, self._device))

    @torch.inference_mode()
    def score(self, logits: Tensor, batch: Sequence[Work]) -> list[Scores]:
        """The second half: what the head makes of them."""
        return self._head(logits, batch)

    def measure_bandwidth(self) -> Bandwidth:
        """How near it comes to the limit of this machine's memory; takes a fraction of a second."""
        limit = measure_limit(DTYPES[self.info.dtype], self._device)
        return Bandwidth(self.weight_bytes, measure_forward_s(self), limit)


def load_runner(
    config: ModelConfig, shards: int = 1, when_loaded: Callable[[], None] = lambda: None
) -> TorchRunner:
    """Return the runner of a real model, or of this process's part of it, checked against plain transformers.

    Args:
        config: Model, memory and device.
        shards: Ranks of the process group that share the model; each of them calls this.
        when_loaded: Called between the loading of the weights and the first forward.

    Raises:
        ModelError: The folder or its architecture cannot be served, or there is no such device.
    """
    assert config.model is not None
    device, dtype = config.device, config.dtype
    _require(device)
    torch.set_num_threads(config.threads)
    loaded = load_model(model_folder(config.model), dtype, device, shards)
    when_loaded()
    # NOTE: measured, so that every rank would find its own.
    wider = wider_dtype(DTYPES[dtype], device) if shards == 1 else None
    arena = make_arena(config.kv_tokens, config.max_sequences, wider, device)
    read_bytes = weight_bytes(loaded.model)
    forward, description = choose_forward(loaded, arena, device)
    logger.info("%s: %s", config.model, description)
    info = ModelInfo(
        role=config.role,
        model_id=str(config.model),
        weight_fingerprint=loaded.weight_fingerprint,
        architecture=loaded.architecture,
        token_map_hash=loaded.token_map_hash,
        vocab_size=loaded.vocab_size,
        context_length=loaded.context_length,
        dtype=dtype.value,
        shards=shards,
        kv_capacity=arena.kv_capacity,
        version=VERSION,
    )
    return TorchRunner(info, forward, torch.device(device), description, read_bytes)


def _require(device: str) -> None:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device: is {device}, but this process sees no GPU: take cpu, or give it one")


def make_arena(kv_tokens: int, max_sequences: int, dtype: torch.dtype | None, device: str) -> KvArena:
    """Shared blocks on a GPU, contiguous memory on a CPU, where gathering blocks costs more than it saves."""
    if torch.device(device).type == "cuda":
        return PagedArena(kv_tokens, max_sequences)
    return ContiguousArena(kv_tokens, max_sequences, dtype)


def choose_forward(loaded: LoadedModel, arena: KvArena, device: str) -> tuple[Forward, str]:
    """The fused forward where the model has one that agrees with transformers, else the ragged one."""
    model = loaded.model
    reference = Reference(model, loaded.vocab_size)
    # NOTE: the parts of a shared model belong to transformers' own linears.
    is_whole = loaded.shards == 1
    packs = is_whole and can_pack(model.dtype, device)
    num_layers = model.config.get_text_config().num_hidden_layers
    computing = str(arena.dtype or model.dtype).removeprefix("torch.")
    if is_whole and can_fuse(model):
        make_linear = LinearMaker(arena.dtype, num_layers) if packs else None
        fused = FusedForward(model, arena, make_linear or PlainLinear, arena.dtype if packs else None)
        if agrees(fused, reference):
            return fused, _describe("fused", make_linear, f"computing in {computing}")
        logger.warning("%s: the fused forward disagrees with transformers: not used", loaded.architecture)
    ragged, make_linear = RaggedForward(model, arena), None
    if packs and model.dtype is torch.bfloat16:
        make_linear = LinearMaker(num_layers=num_layers)
        pack_model(model, make_linear)
    check_forward(ragged, reference, loaded.architecture)
    return ragged, _describe("ragged", make_linear, f"attention in {computing}")


def wider_dtype(dtype: torch.dtype, device: str) -> torch.dtype | None:
    """float32 where this CPU computes faster in it than in `dtype`, as for few rows without matrix units.

    The weights stay in `dtype`; it is what is between them that is wider.
    """
    if device != "cpu" or dtype is torch.float32:
        return None
    return torch.float32 if _attention_s(torch.float32) < _attention_s(dtype) else None


def _attention_s(dtype: torch.dtype) -> float:
    """Seconds for a decode and a verification over 256 positions, the least of several."""
    keys = torch.zeros(1, 4, 256, 64, dtype=dtype)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        for num_rows in (1, 16):
            F.scaled_dot_product_attention(keys[:, :, :num_rows], keys, keys)
        best = min(best, time.perf_counter() - start)
    return best


def _describe(kind: str, make_linear: LinearMaker | None, types: str) -> str:
    packing = make_linear.describe() if make_linear is not None else "nothing packed"
    return f"{kind} forward, {packing}, {types}"
