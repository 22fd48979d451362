"""The runner of real models: a flat batch through ragged or fused forward, then the head."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from fly.messages import ModelInfo, Role
from fly.version import VERSION
from services.engine.arena import ContiguousArena, KvArena
from services.engine.attention import RaggedForward
from services.engine.base import Scores, Slot, Work
from services.engine.fused import FusedForward, can_fuse
from services.engine.head import Head
from services.engine.loading import DTYPES, LoadedModel, load_model
from services.engine.packed import LinearMaker, PlainLinear, can_pack, pack_model
from services.engine.paged_arena import PagedArena
from services.engine.plan import Plan
from services.engine.self_check import Forward, Reference, agrees, check_forward

logger = logging.getLogger(__name__)


class TorchRunner:
    """A `Runner` over torch.

    Attributes:
        info: What it serves.
        description: How it computes: fused or ragged, what is packed, the type of attention.
    """

    def __init__(
        self,
        info: ModelInfo,
        forward: Forward,
        device: torch.device,
        description: str,
    ) -> None:
        self.info = info
        self.description = description
        self._forward = forward
        self._arena = forward.arena
        self._device = device
        self._head = Head(info.vocab_size)

    @property
    def max_sequences(self) -> int:
        return self._arena.max_sequences

    @property
    def kv_capacity(self) -> int:
        return self._arena.kv_capacity

    @property
    def kv_used(self) -> int:
        return self._arena.kv_used

    @property
    def kv_cached(self) -> int:
        return self._arena.kv_cached

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

    @torch.inference_mode()
    def forward(self, batch: Sequence[Work]) -> list[Scores]:
        plan = Plan(batch, self._device)
        return self._head(self._forward(plan), batch)


def load_runner(
    folder: Path,
    *,
    role: Role,
    dtype: str = "bfloat16",
    max_sequences: int = 64,
    kv_tokens: int = 65536,
    threads: int = 1,
    device: str = "cpu",
) -> TorchRunner:
    """A runner for a model folder, proven against plain transformers.

    Raises:
        ModelError: The folder or its architecture cannot be served.
    """
    torch.set_num_threads(threads)
    loaded = load_model(folder, dtype, device)
    arena = make_arena(kv_tokens, max_sequences, DTYPES[dtype], device)
    forward, description = choose_forward(loaded, arena, device)
    logger.info("%s: %s", folder, description)
    info = ModelInfo(
        role=role,
        model_id=str(folder),
        weight_fingerprint=loaded.weight_fingerprint,
        architecture=loaded.architecture,
        token_map_hash=loaded.token_map_hash,
        vocab_size=loaded.vocab_size,
        context_length=loaded.context_length,
        dtype=dtype,
        shards=1,
        kv_capacity=arena.kv_capacity,
        version=VERSION,
    )
    return TorchRunner(info, forward, torch.device(device), description)


def make_arena(kv_tokens: int, max_sequences: int, dtype: torch.dtype, device: str) -> KvArena:
    """Shared blocks on a GPU, contiguous memory on a CPU, where gathering blocks costs more than it saves."""
    if torch.device(device).type == "cuda":
        return PagedArena(kv_tokens, max_sequences)
    return ContiguousArena(kv_tokens, max_sequences, attention_dtype(dtype, device))


def choose_forward(loaded: LoadedModel, arena: KvArena, device: str) -> tuple[Forward, str]:
    """The fused forward where the model has one that agrees with transformers, else the ragged one."""
    model = loaded.model
    reference = Reference(model, loaded.vocab_size)
    packs = can_pack(model.dtype, device)
    make_linear = LinearMaker() if packs else None
    attention = str(arena.dtype or model.dtype).removeprefix("torch.")
    if can_fuse(model):
        fused = FusedForward(model, arena, make_linear or PlainLinear)
        if agrees(fused, reference):
            return fused, _describe("fused", make_linear, attention)
        logger.warning("%s: the fused forward disagrees with transformers: not used", loaded.architecture)
    ragged = RaggedForward(model, arena)
    if make_linear is not None and model.dtype is torch.bfloat16:
        pack_model(model, make_linear)
    check_forward(ragged, reference, loaded.architecture)
    return ragged, _describe("ragged", make_linear, attention)


def attention_dtype(dtype: torch.dtype, device: str) -> torch.dtype | None:
    """float32 where this CPU attends faster in it than in `dtype`, as for few rows without matrix units."""
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


def _describe(kind: str, make_linear: LinearMaker | None, attention: str) -> str:
    packing = make_linear.describe() if make_linear is not None else "nothing packed"
    return f"{kind} forward, {packing}, attention in {attention}"
