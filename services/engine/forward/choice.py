"""Choose the forward of a model: fused where it equals transformers, else ragged."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from services.engine.config import Quantization
from services.engine.forward.experts import pad_experts
from services.engine.forward.fused import FusedForward, can_fuse
from services.engine.forward.int8 import Int8Maker
from services.engine.forward.invariance import RowInvariance, attention_shape
from services.engine.forward.linears import MakeLinear, PlainLinear
from services.engine.forward.packed import LinearMaker, can_pack, pack_model
from services.engine.forward.padding import NO_PADDING, Padding, paddings
from services.engine.forward.proven import ProvenMaker, TiledMaker
from services.engine.forward.ragged import RaggedForward
from services.engine.forward.self_check import Forward, Reference, agrees, check_forward
from services.engine.loading.model import LoadedModel
from services.engine.memory.kv_cache import KvCache

logger = logging.getLogger(__name__)


class Chosen(NamedTuple):
    """A forward, its description, and the check of its rows."""

    forward: Forward
    description: str
    rows: RowInvariance


def choose_forward(
    loaded: LoadedModel,
    kv_cache: KvCache,
    device: str,
    quantization: Quantization = Quantization.NONE,
    is_invariant: bool = True,
) -> Chosen:
    """Return the fused forward if there is one that agrees with transformers, else the ragged one.

    Weights are quantized after the comparison, which they would not pass. `is_invariant` takes linears on a
    GPU that are row-invariant; on a CPU the padding of the cache decides that.
    """
    model, reference = loaded.model, Reference(loaded.model, loaded.vocab_size)
    # NOTE: the linears of a sharded model must stay those of transformers, which hold its parts.
    is_whole = loaded.shards == 1
    packs, on_gpu = is_whole and can_pack(model.dtype, device), torch.device(device).type == "cuda"
    build = _Build(model, kv_cache, packs, quantization, tiles=is_whole and on_gpu and is_invariant)
    computing = str(kv_cache.dtype or model.dtype).removeprefix("torch.")
    if is_whole and can_fuse(model):
        fused, packing = build.fused(reference)
        if fused is not None:
            rows = RowInvariance(fused, reference, loaded, build.paddings(loaded), is_ragged=False)
            return Chosen(fused, f"fused forward, {packing}, computing in {computing}", rows)
        logger.warning("%s: the fused forward differs from transformers: not used", loaded.architecture)
    ragged, packing = build.ragged(reference, loaded.architecture)
    rows = RowInvariance(ragged, reference, loaded, build.paddings(loaded), is_ragged=True)
    return Chosen(ragged, f"ragged forward, {packing}, attention in {computing}", rows)


class _Build(NamedTuple):
    """Builds the forwards of a model, each with a description of its linears."""

    model: PreTrainedModel
    kv_cache: KvCache
    packs: bool
    quantization: Quantization
    tiles: bool

    def paddings(self, loaded: LoadedModel) -> Iterable[Padding]:
        """Return the paddings that may make attention row-invariant: without one on a GPU, or none to try."""
        if not self.kv_cache.padding.is_none:
            return paddings(attention_shape(loaded), self.kv_cache.dtype or self.model.dtype)
        return (NO_PADDING,) if self.tiles else ()

    def fused(self, reference: Reference) -> tuple[FusedForward | None, str]:
        """Return the fused forward; None if it differs from the reference."""
        rows_dtype = self.kv_cache.dtype if self.packs else None
        make_linear = self._maker(rows_dtype)
        if self.quantization is Quantization.INT8:
            is_equal = agrees(self._fuse(PlainLinear, None), reference)
            make_int8 = Int8Maker(make_linear or PlainLinear)
            return (self._fuse(make_int8, rows_dtype) if is_equal else None), make_int8.describe()
        forward = self._fuse(make_linear or PlainLinear, rows_dtype)
        return (forward if agrees(forward, reference) else None), _describe(make_linear)

    def ragged(self, reference: Reference, name: str) -> tuple[RaggedForward, str]:
        """Return the ragged forward, which must equal the reference."""
        forward = RaggedForward(self.model, self.kv_cache)
        make_linear = self._packer()
        is_int8 = self.quantization is Quantization.INT8
        if make_linear is not None and not is_int8 and self.model.dtype is torch.bfloat16:
            pack_model(self.model, make_linear, make_linear.make_copy)
        if not self.kv_cache.padding.is_none:
            pad_experts(self.model, self.kv_cache.padding.rows)
        check_forward(forward, reference, name)
        if is_int8:
            make_int8 = Int8Maker(make_linear or PlainLinear)
            pack_model(self.model, make_int8)
            return forward, make_int8.describe()
        return forward, _describe(make_linear)

    def _maker(self, rows_dtype: torch.dtype | None = None) -> LinearMaker | ProvenMaker | TiledMaker | None:
        return TiledMaker() if self.tiles else self._packer(rows_dtype)

    def _packer(self, rows_dtype: torch.dtype | None = None) -> LinearMaker | ProvenMaker | None:
        if not self.packs:
            return None
        if not self.kv_cache.padding.is_none:
            return ProvenMaker(rows_dtype)
        return LinearMaker(rows_dtype, self.model.config.get_text_config().num_hidden_layers)

    def _fuse(self, make_linear: MakeLinear, rows_dtype: torch.dtype | None) -> FusedForward:
        return FusedForward(self.model, self.kv_cache, make_linear, rows_dtype)


def _describe(make_linear: LinearMaker | ProvenMaker | TiledMaker | None) -> str:
    return make_linear.describe() if make_linear is not None else "nothing packed"
