"""The models of transformers that are built from a pair's recipe."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.aligned_pair.recipe import PairRecipe, Shape

_CALIBRATION_SHAPE = (2, 96)
_CALIBRATION_STEPS = 16
_SCALES = (1e-4, 50.0)


@dataclass(frozen=True, slots=True)
class BigramMap:
    """The bigrams of both models.

    Attributes:
        code: Unit vector of each token, (vocab, code).
        head: Sum of the codes of the tokens that each token succeeds, (vocab, code).
    """

    code: Tensor
    head: Tensor


@torch.no_grad()
def build_pair(recipe: PairRecipe, device: str = "cpu") -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """Return target and drafter in float32; the same recipe gives the same weights on the same device."""
    with torch.device(device):
        bigrams = draw_bigrams(recipe)
        return (
            _build(recipe, recipe.target, bigrams, recipe.seed + 1),
            _build(recipe, recipe.drafter, bigrams, recipe.seed + 2),
        )


def draw_bigrams(recipe: PairRecipe) -> BigramMap:
    """Return the bigrams of a recipe; their code is as wide as the smaller model."""
    generator, vocab = _generator(recipe.seed), recipe.vocab_size
    width = min(recipe.target.hidden, recipe.drafter.hidden)
    code = F.normalize(torch.randn(vocab, width, generator=generator), dim=-1)
    order = torch.randperm(vocab, generator=generator)
    successor = torch.empty(vocab, dtype=torch.long)
    successor[order] = order.roll(-1)
    second = successor[torch.randint(0, vocab, (vocab,), generator=generator)]
    share = torch.rand(vocab, 1, generator=generator) * recipe.branch
    head = torch.zeros_like(code).index_add_(0, successor, code).index_add_(0, second, code * share)
    return BigramMap(code, head)


@torch.no_grad()
def agreement(target: Any, drafter: Any, ids: Tensor) -> float:
    """Return the share of positions of `ids`, (sequences, tokens), at which both choose the same token."""
    return float((target(ids).logits.argmax(-1) == drafter(ids).logits.argmax(-1)).float().mean())


def _build(recipe: PairRecipe, shape: Shape, bigrams: BigramMap, seed: int) -> LlamaForCausalLM:
    generator = _generator(seed)
    model: Any = LlamaForCausalLM(_config(recipe, shape))
    width = bigrams.code.shape[1]
    isometry = _code_map(width, shape.hidden, generator)
    noise_by_signal = recipe.noise * math.sqrt(shape.hidden)
    gain = recipe.peak / math.sqrt(shape.hidden) * math.hypot(1.0, noise_by_signal)
    model.model.embed_tokens.weight.copy_(bigrams.code @ isometry * math.sqrt(shape.hidden))
    model.lm_head.weight.copy_(bigrams.head @ isometry * gain)
    for layer in model.model.layers:
        for linear in (m for m in layer.modules() if isinstance(m, torch.nn.Linear)):
            linear.weight.normal_(0.0, linear.in_features**-0.5, generator=generator)
    ids = torch.randint(0, recipe.vocab_size, _CALIBRATION_SHAPE, generator=generator)
    _calibrate(model, noise_by_signal, ids)
    built: LlamaForCausalLM = model.eval()
    return built


def _code_map(width: int, hidden: int, generator: Generator) -> Tensor:
    """Return a map from the token code into a model's hidden space, (code, hidden), that keeps lengths.

    The map is an isometry if there is room for one; otherwise a projection, which keeps lengths on average.
    """
    most, least = max(width, hidden), min(width, hidden)
    orthogonal: Tensor = torch.linalg.qr(torch.randn(most, least, generator=generator))[0]
    return orthogonal.T if hidden >= width else orthogonal * math.sqrt(width / hidden)


def _config(recipe: PairRecipe, shape: Shape) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=recipe.context_length,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )


def _calibrate(model: Any, noise_by_signal: float, ids: Tensor) -> None:
    """Scale the layers' output until its length by the embedding's is `noise_by_signal` on `ids`."""
    outputs = [w for m in model.model.layers for w in (m.self_attn.o_proj.weight, m.mlp.down_proj.weight)]
    drawn = [weight.clone() for weight in outputs]

    def scale_by(factor: float) -> float:
        for weight, unscaled in zip(outputs, drawn, strict=True):
            torch.mul(unscaled, factor, out=weight.data)
        return _noise_by_signal(model, ids)

    low, high = _SCALES
    for _ in range(_CALIBRATION_STEPS):  # bisection on a logarithmic scale
        middle = math.sqrt(low * high)
        low, high = (middle, high) if scale_by(middle) < noise_by_signal else (low, middle)
    scale_by(math.sqrt(low * high) if noise_by_signal else 0.0)


def _noise_by_signal(model: Any, ids: Tensor) -> float:
    streams: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0]))
    model.model(ids)
    hook.remove()
    signal = model.model.embed_tokens(ids)
    return float((streams[0] - signal).norm() / signal.norm())


def _generator(seed: int) -> Generator:
    return torch.Generator(torch.get_default_device()).manual_seed(seed)
