"""Export to a standard model folder: config, weights in bf16, tokenizer, defaults for generation."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig, LlamaForCausalLM
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write what `AutoModelForCausalLM` and `PreTrainedTokenizerFast` load; the model becomes bf16."""
    model.set_attn_implementation("sdpa")
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id, do_sample=False
    )
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
