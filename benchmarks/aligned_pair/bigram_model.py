"""A bigram model of the demo's corpus as a Llama: the smallest model that can help the demo's drafter.

Nothing is trained. The embedding of a token is a unit vector of its own, one layer adds nothing to it, and
the head's rows are the counted log-probabilities of what follows: so the model answers what followed a token
in the corpus, at a model's full cost.
"""

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from benchmarks.harness.system import DEMO_MODELS
from demo.corpus import Family, Split, problems
from demo.tokenizer import CONTEXT_LENGTH, load_tokenizer, render

_SEED = 11
_PROBLEMS_PER_FAMILY = 400
_HEADS = 10
_SMOOTHING = 0.01


def ensure_bigram_model(folder: Path) -> Path:
    """Return the model's folder; build it unless it exists already."""
    if not (folder / "model.safetensors").is_file():
        tokenizer = load_tokenizer(DEMO_MODELS / "target")
        model = bigram_model(count_bigrams(len(tokenizer)))
        model.generation_config = GenerationConfig(do_sample=False)  # type: ignore[no-untyped-call]
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


def count_bigrams(vocab_size: int) -> Tensor:
    """Count how often one token (row) is followed by another (column) in texts of the training split."""
    tokenizer, counts = load_tokenizer(DEMO_MODELS / "target"), torch.zeros(vocab_size, vocab_size)
    for family in Family:
        for problem in islice(problems(_SEED, Split.TRAIN, family), _PROBLEMS_PER_FAMILY):
            text = f"{render(problem.prompt)}{problem.response}{tokenizer.eos_token}"
            for token, following in pairwise(tokenizer.encode(text)):
                counts[token, following] += 1
    return counts


@torch.no_grad()
def bigram_model(counts: Tensor) -> LlamaForCausalLM:
    """Return a model whose logits are the log-probabilities of a token's successors, (vocab, vocab)."""
    vocab_size = len(counts)
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=vocab_size,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=_HEADS,
            num_key_value_heads=1,
            max_position_embeddings=CONTEXT_LENGTH,
            bos_token_id=None,
            eos_token_id=0,
            tie_word_embeddings=False,
        )
    )
    smooth = counts + _SMOOTHING
    model.model.embed_tokens.weight.copy_(torch.eye(vocab_size))
    # The final norm makes the unit vector sqrt(vocab) long.
    model.lm_head.weight.copy_((smooth / smooth.sum(1, keepdim=True)).log().T / vocab_size**0.5)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    built: LlamaForCausalLM = model.eval()
    return built
