"""A fused forward for Llama-like models: few operators per layer, shared tensors built once per forward.

Linears with the same input are fused: queries, keys and values are one linear, gate and up another.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM

from services.engine.forward.attention import Attention
from services.engine.forward.forward_batch import NO_CAP, Cap, ForwardBatch
from services.engine.forward.fused_attention import FusedAttention, RotatedAttention
from services.engine.forward.linears import BiasedLinear, HeadNormedLinear, Linear
from services.engine.forward.residual import Residual, RmsNorm, make_residual
from services.engine.forward.rotation import Rotary
from services.engine.forward.shape import AttentionShape
from services.engine.forward.varlen_attention import fits_kernel, make_attention
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache

_LLAMA_LIKE = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_ELEMENTS_OF_ONE_THREAD = 2**15 - 1
_STATIC_ROPE = {"default", "linear", "llama3"}


class FusedLayer(NamedTuple):
    """The weights of one layer."""

    attention_norm: RmsNorm
    project: Linear
    output: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear


def can_fuse(model: Any) -> bool:
    """Check that this forward computes the model."""
    if type(model) not in _LLAMA_LIKE:
        return False
    config: Any = model.config
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    unbiased = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return (
        config.hidden_act == "silu"
        and all(linear.bias is None for linear in unbiased)
        and getattr(config, "sliding_window", None) is None
        and config.rope_parameters["rope_type"] in _STATIC_ROPE
        and config.rope_parameters.get("partial_rotary_factor", 1.0) == 1.0
    )


class FusedForward:
    """Computes the logits of a Llama-like model over a KV cache, as `RaggedForward`."""

    def __init__(
        self,
        model: Any,
        kv_cache: KvCache,
        make_linear: Callable[[Tensor], Linear],
        rows_dtype: torch.dtype | None = None,
    ) -> None:
        """Fuse the weights of a model that `can_fuse` accepts.

        `make_linear` makes linears for rows of type `rows_dtype`, that of the activations between linears;
        None is the type of the weights.
        """
        config = model.config
        self._shape = AttentionShape(
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            dim=model.model.layers[0].self_attn.head_dim,
        )
        self.kv_cache = kv_cache
        self._embedding = model.model.embed_tokens.weight
        self._rows_dtype = rows_dtype or self._embedding.dtype
        self._norm = RmsNorm(model.model.norm.weight.to(self._rows_dtype), config.rms_norm_eps)
        self._layers = [
            _fuse(layer, make_linear, config.rms_norm_eps, self._rows_dtype) for layer in model.model.layers
        ]
        self._head = make_linear(model.lm_head.weight)
        self._dtype = kv_cache.dtype or self._rows_dtype
        self._rotary = _rotary_tables(model, config.max_position_embeddings, self._dtype)

    @property
    def attends_at_once(self) -> bool:
        """True if attention over memory in blocks on a GPU is one call for all sequences."""
        return fits_kernel(self._dtype, self._shape.dim)

    def __call__(self, batch: ForwardBatch) -> Tensor:
        """Return the logits of the output rows, (outputs, embedding rows)."""
        return self.head(self.layers(batch.ids, self._attention(batch)), batch)

    def layers(self, ids: Tensor, attend: Callable[[int, Tensor], Tensor]) -> Residual:
        """Return the rows of these tokens after all layers."""
        residual = make_residual(F.embedding(ids, self._embedding).to(self._rows_dtype))
        for index, layer in enumerate(self._layers):
            projected = layer.project(residual.normalized(layer.attention_norm))
            residual.add(layer.output(attend(index, projected)))
            gate, up = layer.gate_up(residual.normalized(layer.mlp_norm)).chunk(2, -1)
            residual.add(layer.down(_silu(gate).mul_(up)))
        return residual

    def head(self, residual: Residual, batch: ForwardBatch) -> Tensor:
        """Return the logits of the output rows, as a call of the forward."""
        if batch.num_outputs == 0:
            return residual.rows.new_empty(0, len(self._embedding))
        if batch.outputs is not None:
            residual = make_residual(residual.rows.index_select(0, batch.outputs))
        return self._head(residual.normalized(self._norm))

    def attend(
        self, batch: ForwardBatch, projected: Tensor, shape: AttentionShape, cap: Cap = NO_CAP
    ) -> Tensor:
        """As `Forward`."""
        return self._attention(batch)(0, projected.to(self._rows_dtype))

    def rotated(self, positions: Tensor, attend: Attention) -> RotatedAttention:
        """Return an attention to rotated rows at these positions, (rows,)."""
        return RotatedAttention(positions, attend, self._shape, self._rotary, self._dtype)

    def _attention(self, batch: ForwardBatch) -> Callable[[int, Tensor], Tensor]:
        """Return the attention of a forward over this kind of memory."""
        kv_cache = self.kv_cache
        if isinstance(kv_cache, ContiguousKvCache):
            return FusedAttention(batch, kv_cache, self._shape, self._rotary, self._dtype)
        return self.rotated(batch.positions, make_attention(batch, kv_cache))


def _silu(rows: Tensor) -> Tensor:
    """Compute the activation in parts that torch gives to one thread each.

    NOTE: where threads share an operator, the ends of their shares have another exponential.
    """
    most = max(1, _ELEMENTS_OF_ONE_THREAD // rows.shape[1])
    if len(rows) <= most or rows.device.type != "cpu":
        return F.silu(rows)
    return torch.cat([F.silu(part) for part in torch.split(rows, most)])


def _fuse(layer: Any, make_linear: Callable[[Tensor], Linear], eps: float, dtype: torch.dtype) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    return FusedLayer(
        attention_norm=RmsNorm(layer.input_layernorm.weight.to(dtype), eps),
        project=_fuse_projection(attention, make_linear, dtype),
        output=make_linear(attention.o_proj.weight),
        mlp_norm=RmsNorm(layer.post_attention_layernorm.weight.to(dtype), eps),
        gate_up=make_linear(_joined(mlp.gate_proj, mlp.up_proj)),
        down=make_linear(mlp.down_proj.weight),
    )


def _fuse_projection(attention: Any, make_linear: Callable[[Tensor], Linear], dtype: torch.dtype) -> Linear:
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    linear = make_linear(_joined(*parts))
    if attention.q_proj.bias is not None:
        linear = BiasedLinear(linear, torch.cat([part.bias for part in parts]).to(dtype))
    if not hasattr(attention, "q_norm"):
        return linear
    norms = [
        norm.weight.to(dtype).expand(len(part.weight) // len(norm.weight), -1)
        for part, norm in zip(parts, (attention.q_norm, attention.k_norm), strict=False)
    ]
    return HeadNormedLinear(linear, torch.cat(norms), attention.q_norm.variance_epsilon)


def _joined(*parts: nn.Linear) -> Tensor:
    """Return the weights of linears as one tensor, of which theirs are views afterwards.

    So no more than the weights of these linears exist twice at a time, and the model stays usable.
    """
    joined = torch.cat([part.weight for part in parts])
    start = 0
    for part in parts:
        end = start + len(part.weight)
        part.weight.data = joined[start:end]
        start = end
    return joined


def _rotary_tables(model: Any, context_length: int, dtype: torch.dtype) -> Rotary:
    """Return the tables by position, computed by the model's own module."""
    positions = torch.arange(context_length, device=model.device)[None]
    like = torch.empty(0, dtype=dtype, device=model.device)
    cos, sin = model.model.rotary_emb(like, position_ids=positions)
    return Rotary.make(cos[0], sin[0])
