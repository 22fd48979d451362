"""Tiny random models of the supported architectures; every parameter is random, so tests notice each."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as t

VOCAB_SIZE = 96
CONTEXT = 64
WINDOW = 7
"""Window of the models with sliding windows; shorter than the sequences of all tests."""


def _tiny(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "initializer_range": 0.2,
        **changes,
    }


def _experts(**changes: Any) -> dict[str, Any]:
    return _tiny(num_experts_per_tok=2, num_local_experts=4, **changes)


def _gpt2() -> t.PreTrainedModel:
    return t.GPT2LMHeadModel(
        t.GPT2Config(
            vocab_size=VOCAB_SIZE, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2
        )
    )


def _opt() -> t.PreTrainedModel:
    return t.OPTForCausalLM(t.OPTConfig(**_tiny(ffn_dim=48, word_embed_proj_dim=32, init_std=0.2)))


def _qwen3_moe() -> t.PreTrainedModel:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
    return t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**_tiny(**sizes)))


def _gpt_oss() -> t.PreTrainedModel:
    return t.GptOssForCausalLM(t.GptOssConfig(**_experts(head_dim=8, sliding_window=WINDOW)))


def _gemma2() -> t.PreTrainedModel:
    # Caps low enough to change the scores and logits of a tiny model.
    caps: dict[str, Any] = {
        "attn_logit_softcapping": 0.5,
        "query_pre_attn_scalar": 8,
        "final_logit_softcapping": 5.0,
    }
    return t.Gemma2ForCausalLM(t.Gemma2Config(**_tiny(head_dim=8, sliding_window=WINDOW, **caps)))


def _gemma3() -> t.PreTrainedModel:
    layers = ["sliding_attention", "full_attention"]
    sizes = _tiny(head_dim=8, sliding_window=WINDOW, layer_types=layers)
    return t.Gemma3ForCausalLM(t.Gemma3TextConfig(**sizes))


def _gemma3n() -> t.PreTrainedModel:
    """Make a Gemma 3n, whose layers may have MLPs of different widths."""
    layers = ["sliding_attention", "full_attention"] * 2
    sizes = {"num_hidden_layers": 4, "head_dim": 8, "num_kv_shared_layers": 2, "laurel_rank": 4}
    inputs = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE}
    lists = {"intermediate_size": [48, 48, 32, 32], "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]}
    config = t.Gemma3nTextConfig(
        **_tiny(sliding_window=WINDOW, layer_types=layers, altup_num_inputs=2, **sizes, **inputs, **lists)
    )
    return t.Gemma3nForCausalLM(config)


def _gemma4() -> t.PreTrainedModel:
    """Make a Gemma 4 whose last layers use the keys and values of earlier ones."""
    layers = ["sliding_attention", "full_attention"] * 2
    sizes = {"num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 8, "num_kv_shared_layers": 2}
    inputs = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE}
    config = t.Gemma4TextConfig(**_tiny(sliding_window=WINDOW, layer_types=layers, **sizes, **inputs))
    return t.Gemma4ForCausalLM(config)


MAKERS: Mapping[str, Callable[[], t.PreTrainedModel]] = {
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**_tiny(tie_word_embeddings=True))),
    # More heads than hidden / dim, untied.
    "llama_odd": lambda: t.LlamaForCausalLM(t.LlamaConfig(**_tiny(head_dim=16, num_key_value_heads=4))),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**_tiny())),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**_tiny(head_dim=8))),
    "qwen3_moe": _qwen3_moe,
    "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**_tiny(sliding_window=WINDOW))),
    "mistral_full": lambda: t.MistralForCausalLM(t.MistralConfig(**_tiny(sliding_window=None))),
    "mixtral": lambda: t.MixtralForCausalLM(t.MixtralConfig(**_experts(sliding_window=WINDOW))),
    "phi3": lambda: t.Phi3ForCausalLM(t.Phi3Config(**_tiny(sliding_window=WINDOW))),
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "gpt2": _gpt2,
    "opt": _opt,
    "gpt_neox": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**_tiny())),
    "olmo2": lambda: t.Olmo2ForCausalLM(t.Olmo2Config(**_tiny())),
    "gpt_oss": _gpt_oss,
}
ARCHITECTURES = tuple(MAKERS)


def make_tiny(kind: str, **changes: Any) -> t.PreTrainedModel:
    """Make a model of a kind; equal on every call. `changes` are values of its configuration."""
    torch.manual_seed(0)
    model = MAKERS[kind]().eval()
    if changes:
        model = type(model)(type(model.config)(**{**model.config.to_dict(), **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases start at 0 and norms at 1, so tests would not notice them
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def change_config(folder: Path, **values: Any) -> None:
    """Set keys of a folder's config.json; None removes a key."""
    path = folder / "config.json"
    changed = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))
