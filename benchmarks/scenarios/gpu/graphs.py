"""The ceiling: a forward with static shapes in one CUDA graph, without the host. A bound, not the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.aligned_pair.recipe import Shape
from benchmarks.scenarios.gpu.forward import kv_bytes, model_name
from benchmarks.scenarios.gpu.plan import DRAFT_LENGTH, GPU, Case, Plan
from benchmarks.scenarios.gpu.results import GraphTime, GraphTimes
from benchmarks.scenarios.gpu.timing import Timer
from benchmarks.scenarios.peers.transformers_peer import load_plain
from services.engine.loading.bandwidth import weight_bytes

_WARM_UPS = 3


class _Layer(NamedTuple):
    """The weights of a layer: queries, keys and values are one, and so are gate and up."""

    attention_norm: Tensor
    project: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class StaticForward:
    """A Llama with one KV tensor for all sequences, and one call of attention for all of them.

    No shape depends on a length and nothing is read by the host, so that a graph can hold a whole forward.
    """

    def __init__(self, model: Any, shape: Shape) -> None:
        """Take the weights of a model of transformers."""
        self._shape, self._dim = shape, shape.hidden // shape.heads
        self._eps = float(model.config.rms_norm_eps)
        self._layers = [_layer(layer) for layer in model.model.layers]
        self._embedding, self._norm = model.model.embed_tokens.weight, model.model.norm.weight
        self._head: Tensor = model.lm_head.weight
        positions = torch.arange(model.config.max_position_embeddings, device=self._head.device)
        cos, sin = model.model.rotary_emb(self._head.new_empty(0), position_ids=positions[None])
        first, second = sin[0].chunk(2, -1)
        self._cos, self._sin = cos[0], torch.cat((-first, second), -1)  # the signs of `rotate_half`

    def new_memory(self, sequences: int, length: int) -> Tensor:
        """Return KV memory, (layers, 2, sequences, length, KV heads, dim)."""
        shape = self._shape
        return self._head.new_zeros((shape.layers, 2, sequences, length, shape.kv_heads, self._dim))

    @torch.inference_mode()
    def __call__(self, ids: Tensor, positions: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Compute new rows, both (sequences, rows); return choices and top-3 entropies of all rows."""
        shape, (sequences, rows), length = self._shape, ids.shape, memory.shape[3]
        flat = positions.flatten()
        cos, sin = self._cos[flat][:, None], self._sin[flat][:, None]
        firsts = torch.arange(sequences, device=ids.device)[:, None] * length
        places = (firsts + positions).flatten()
        seen = (torch.arange(length, device=ids.device) <= positions[..., None])[:, None]
        hidden = F.embedding(ids.flatten(), self._embedding)
        for layer, (keys, values) in zip(self._layers, memory, strict=True):
            projected = F.linear(self._normed(hidden, layer.attention_norm), layer.project)
            heads = projected.view(-1, shape.heads + 2 * shape.kv_heads, self._dim)
            rotated = heads[:, : -shape.kv_heads]
            rotated = rotated * cos + rotated.roll(self._dim // 2, -1) * sin
            queries = rotated[:, : shape.heads]
            keys.flatten(0, 1).index_copy_(0, places, rotated[:, shape.heads :])
            values.flatten(0, 1).index_copy_(0, places, heads[:, -shape.kv_heads :])
            attended = F.scaled_dot_product_attention(
                queries.reshape(sequences, rows, shape.heads, self._dim).transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                attn_mask=seen,
                enable_gqa=True,
            )
            hidden = hidden + F.linear(attended.transpose(1, 2).reshape(sequences * rows, -1), layer.output)
            gate, up = F.linear(self._normed(hidden, layer.mlp_norm), layer.gate_up).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down)
        logits = F.linear(self._normed(hidden, self._norm), self._head).float()
        log_p = logits.topk(3).values - logits.logsumexp(-1, keepdim=True)
        return logits.argmax(-1).view(sequences, rows), -(log_p.exp() * log_p).sum(-1)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (self._shape.hidden,), weight, self._eps)


def measure_graphs(plan: Plan, name: str, folder: Path, shape: Shape, timer: Timer) -> GraphTimes:
    """Measure the static forward of a model, and on a GPU its CUDA graphs."""
    model = load_plain(folder, "bfloat16").to(plan.device)
    num_bytes = weight_bytes(model)
    with torch.inference_mode():
        static = StaticForward(model, shape)
        del model
        times = [_measure_case(static, case, plan, shape, timer) for case in plan.graph_cases]
        draft_s = _draft_s(static, plan, timer) if plan.device == GPU else None
    return GraphTimes(model_name(name, plan.pair, shape), num_bytes, times, draft_s)


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        attention_norm=layer.input_layernorm.weight,
        project=torch.cat([part.weight for part in (attention.q_proj, attention.k_proj, attention.v_proj)]),
        output=attention.o_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
    )


def _measure_case(static: StaticForward, case: Case, plan: Plan, shape: Shape, timer: Timer) -> GraphTime:
    memory = static.new_memory(case.sequences, case.context + case.rows)
    ids = torch.ones(case.sequences, case.rows, dtype=torch.long, device=plan.device)
    positions = torch.arange(case.context, case.context + case.rows, device=plan.device).expand_as(ids)

    def run() -> object:
        return static(ids, positions, memory)

    eager_s = timer.median_s(run)
    graph_s = timer.median_s(_captured(run)) if plan.device == GPU else None
    return GraphTime(case, kv_bytes(case, shape), eager_s, graph_s)


def _draft_s(static: StaticForward, plan: Plan, timer: Timer) -> float:
    """Measure 15 tokens of one sequence, one after the other, in one graph."""
    context = plan.graph_cases[0].context
    memory = static.new_memory(1, context + DRAFT_LENGTH)
    first = torch.ones(1, 1, dtype=torch.long, device=plan.device)
    start = torch.full((1, 1), context, device=plan.device)

    def run() -> object:
        token, position = first, start
        for _ in range(DRAFT_LENGTH):
            token, _ = static(token, position, memory)
            position = position + 1
        return token

    return timer.median_s(_captured(run))


def _captured(run: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a CUDA graph of the call, after some calls beside it as torch asks for."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
