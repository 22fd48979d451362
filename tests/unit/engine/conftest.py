"""Tiny random models and drivers for jobs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fly.messages import Open
from fly.types import SamplingParams
from services.engine.base import Runner
from services.engine.sequence import EngineSequence

VOCAB_SIZE = 96
CONTEXT = 64


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
        "initializer_range": 0.2,
        **changes,
    }


def _make(kind: str) -> torch.nn.Module:
    import transformers as t

    torch.manual_seed(0)
    match kind:
        case "llama":
            return t.LlamaForCausalLM(t.LlamaConfig(**_tiny(tie_word_embeddings=True)))
        case "llama_odd":  # more heads than hidden / dim, untied
            return t.LlamaForCausalLM(t.LlamaConfig(**_tiny(head_dim=16, num_key_value_heads=4)))
        case "qwen2":
            return t.Qwen2ForCausalLM(t.Qwen2Config(**_tiny()))
        case "mistral":
            return t.MistralForCausalLM(t.MistralConfig(**_tiny(sliding_window=7)))
        case "gpt2":
            return t.GPT2LMHeadModel(
                t.GPT2Config(
                    vocab_size=VOCAB_SIZE,
                    n_positions=CONTEXT,
                    n_embd=32,
                    n_layer=2,
                    n_head=4,
                    initializer_range=0.2,
                )
            )
        case "gemma2":
            return t.Gemma2ForCausalLM(t.Gemma2Config(**_tiny(head_dim=8)))
    raise ValueError(kind)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny model of a kind, made once."""
    torch.set_num_threads(1)
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            _make(kind).save_pretrained(made[kind])
        return made[kind]

    return make


def new_sequence(runner: Runner, sampling: SamplingParams | None = None, **kwargs: Any) -> EngineSequence:
    """A sequence outside of any engine."""
    opening = Open("r", kwargs.pop("prompt_length", 0), sampling or SamplingParams(), **kwargs)
    slot = runner.allocate(CONTEXT)
    assert slot is not None
    return EngineSequence(opening, slot, runner.info.vocab_size, CONTEXT, chunk_tokens=8)


def finish(runner: Runner, job: Any) -> Any:
    """Runs one job to its end, one forward after the other."""
    try:
        work = next(job)
        while True:
            work = job.send(runner.forward([work])[0])
    except StopIteration as stop:
        return stop.value


@pytest.fixture
def drive() -> Callable[[Runner, Any], Any]:
    return finish


@pytest.fixture
def make_sequence() -> Callable[..., EngineSequence]:
    return new_sequence
