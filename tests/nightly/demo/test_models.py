"""The shipped pair: complete folders, small enough, one tokenizer, and responses that can be checked."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo import MODELS
from demo.evaluation.accuracy import respond, score
from demo.evaluation.agreement import measure_agreement
from demo.evaluation.measure import load_model
from demo.tasks import load_tasks
from demo.tokenizer import CONTEXT_LENGTH, build_tokenizer, load_tokenizer, render
from demo.training.recipes import PAIR

Models = dict[str, LlamaForCausalLM]
MAX_BYTES_TOGETHER = 40e6
EVERY_MODEL = pytest.mark.parametrize("name", PAIR)


@pytest.fixture(scope="module")
def models() -> Models:
    torch.set_num_threads(1)  # more threads wait for each other where a machine is busy
    return {name: load_model(MODELS / name, torch.float32) for name in PAIR}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return load_tokenizer(MODELS / "target")


@EVERY_MODEL
def test_a_folder_is_what_its_recipe_says(name: str, models: Models) -> None:
    config, shape = models[name].config, PAIR[name].architecture
    assert (config.num_hidden_layers, config.hidden_size) == (shape.layers, shape.hidden)
    assert config.num_attention_heads % 2 == config.num_key_value_heads % 2 == 0
    assert config.max_position_embeddings == CONTEXT_LENGTH


@EVERY_MODEL
def test_both_have_the_tokenizer_of_the_corpus(name: str, models: Models) -> None:
    tokenizer = load_tokenizer(MODELS / name)
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert models[name].config.vocab_size == len(tokenizer)
    assert models[name].generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_pair_is_small() -> None:
    sizes = [file.stat().st_size for file in MODELS.rglob("*") if file.is_file()]
    assert sum(sizes) <= MAX_BYTES_TOGETHER


def test_the_target_solves_shipped_tasks(models: Models, tokenizer: PreTrainedTokenizerFast) -> None:
    tasks = load_tasks(24)
    responses = respond(models["target"], tokenizer, [task.prompt for task in tasks], "target")
    assert score(tokenizer, [task.answer for task in tasks], responses).value >= 0.8


def test_the_drafter_agrees_on_most_tokens(models: Models, tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = [task.prompt for task in load_tasks(9)]
    responses = respond(models["target"], tokenizer, prompts, "target")
    encoded = [tokenizer.encode(render(prompt)) for prompt in prompts]
    pair = models["target"], models["drafter"]
    agreement = measure_agreement(*pair, encoded, responses, tokenizer.eos_token_id)
    assert 0.8 <= agreement.tokens.value <= 0.97


@EVERY_MODEL
def test_a_full_context_runs(name: str, models: Models) -> None:
    with torch.inference_mode():
        logits = models[name](input_ids=torch.ones(1, CONTEXT_LENGTH, dtype=torch.long)).logits
    assert logits.isfinite().all()
