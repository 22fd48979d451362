"""Standard Llama models from an architecture, and their export to a model folder."""

from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.tokenizer import CONTEXT_LENGTH
from demo.training.recipes import Architecture


def build_config(architecture: Architecture, vocab_size: int, eos_token_id: int) -> LlamaConfig:
    """Describe the model as transformers does."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=architecture.hidden,
        intermediate_size=architecture.intermediate,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        tie_word_embeddings=False,
    )


def build_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """Make a model whose layers begin as the identity: what they add to the stream starts at zero."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write what `AutoModelForCausalLM` and `PreTrainedTokenizerFast` load; the model becomes bf16."""
    model.set_attn_implementation("sdpa")
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id, do_sample=False
    )
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
