"""Training: batches depend on the step alone, attention is exact, and an interruption changes nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import load_file
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.corpus import Style
from demo.plot import loss_plot
from demo.tokenizer import build_tokenizer, load_tokenizer
from demo.training import attention
from demo.training.data import Batch, BatchSource
from demo.training.loop import train
from demo.training.model import build_config, build_model
from demo.training.recipes import TARGET, Architecture, DataMix, Recipe, Schedule
from demo.training.record import TrainingRecord, read_losses

TINY = Recipe(
    name="tiny",
    architecture=Architecture(layers=2, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=32),
    schedule=Schedule(steps=6, warmup_steps=2),
    style=Style(),
    data=DataMix(row_lengths=(256,), tokens_per_step=1024),
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_rates_rise_stay_and_fall_to_zero() -> None:
    schedule = Schedule(steps=1000, warmup_steps=10, decay_from=0.5)
    factors = [schedule.factor(step) for step in (0, 9, 500, 750, 999)]
    assert factors == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.002])


def test_a_batch_depends_on_the_step_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    source, other = BatchSource(TARGET, tokenizer), BatchSource(TARGET, tokenizer)
    source.batch(3)
    assert torch.equal(source.batch(7).tokens, other.batch(7).tokens)
    assert not torch.equal(other.batch(8).tokens, other.batch(9).tokens)


def test_only_responses_count(tokenizer: PreTrainedTokenizerFast) -> None:
    without_auxiliary = replace(TARGET, data=DataMix(repetition_share=0.0, sums_share=0.0))
    batch = BatchSource(without_auxiliary, tokenizer).batch(0)
    counted = torch.zeros(batch.tokens.numel(), dtype=torch.bool)
    counted[batch.index + 1] = True
    text = tokenizer.decode(batch.tokens.flatten()[counted])
    prompts = tokenizer.decode(batch.tokens.flatten()[~counted])
    assert text.count("Answer:") == text.count(tokenizer.eos_token) > 0
    assert "Answer:" not in prompts


def test_digits_weigh_more_than_wording(tokenizer: PreTrainedTokenizerFast) -> None:
    batch = BatchSource(TARGET, tokenizer).batch(TARGET.schedule.steps - 1)
    labels = tokenizer.convert_ids_to_tokens(batch.labels.tolist())
    weights = dict(zip(labels, batch.weights.tolist(), strict=True))
    assert weights["Ġ4"] == weights["4"] == TARGET.data.content_weight > 1.0
    assert weights["ĠAnswer"] == weights["."] == 1.0


def test_training_attention_equals_the_standard_one() -> None:
    attention.register()
    model = build_model(build_config(TINY.architecture, 640, 0), seed=0)
    torch.nn.init.normal_(model.model.layers[0].self_attn.o_proj.weight)
    tokens = torch.randint(0, 600, (3, 40))
    with torch.inference_mode():
        standard = model(input_ids=tokens).logits
        model.set_attn_implementation(attention.NAME)
        torch.testing.assert_close(model(input_ids=tokens).logits, standard, rtol=1e-4, atol=1e-5)


def test_an_interrupted_training_ends_where_an_unbroken_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(TINY, tmp_path / "unbroken", tmp_path / "a")
    _interrupt_at(2, monkeypatch)
    assert not train(TINY, tmp_path / "broken", tmp_path / "b")
    monkeypatch.undo()
    assert not (tmp_path / "b").exists()
    assert train(TINY, tmp_path / "broken", tmp_path / "b")
    unbroken, broken = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(unbroken[key], broken[key]) for key in unbroken)
    assert load_tokenizer(tmp_path / "b").eos_token_id == 0
    record = TrainingRecord.read(tmp_path / "b")
    assert (record.steps, record.tokens) == (6, 6 * 1024)


def test_of_a_step_logged_twice_the_later_line_counts(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 20, "loss": 9.0}\n{"step": 20, "loss": 2.0}\n{"step": 40, "loss": 1.0}\n')
    assert read_losses(log) == ((20, 2.0), (40, 1.0))


def test_the_plot_names_every_curve() -> None:
    svg = loss_plot({"target": [(20, 3.0), (40, 0.1)], "drafter": [(20, 4.0), (40, 0.5)]})
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert all(f">{name}</text>" in svg for name in ("target", "drafter"))


def _interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make_batch = BatchSource.batch

    def batch(source: BatchSource, at: int) -> Batch:
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return make_batch(source, at)

    monkeypatch.setattr(BatchSource, "batch", batch)
