"""Every supported architecture through the runner, ragged and with rollback, against plain transformers."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from flyserve.core.errors import ModelError
from flyserve.core.messages import Role
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, Scores
from services.engine.config import ModelConfig
from services.engine.forward import ragged, torch_runner
from services.engine.forward.torch_runner import TorchRunner, load_runner
from services.engine.head.head_scorer import HeadScorer
from services.engine.memory.paged_kv_cache import PagedKvCache
from tests.support.tiny_models import ARCHITECTURES, CONTEXT, VOCAB_SIZE, WINDOW, make_tiny

FolderMaker = Callable[[str], Path]
LONGEST = CONTEXT - 4


def loaded(folder: Path, dtype: str = "float32") -> TorchRunner:
    return load_runner(ModelConfig(model=folder, role=Role.TARGET, dtype=dtype, kv_tokens=512))


def served(folder: Path, dtype: str = "float32") -> HeadScorer:
    return HeadScorer(loaded(folder, dtype))


def plain_logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits.log_softmax(-1)


class Session:
    """Three sequences that grow and roll back at random, several in every forward."""

    def __init__(self, runner: HeadScorer, seed: int) -> None:
        self._runner = runner
        self._draw = random.Random(seed)
        self._slots = [runner.allocate(CONTEXT) for _ in range(3)]
        self.known: list[list[int]] = [[], [], []]

    def turns(self, count: int) -> Iterator[tuple[list[int], Scores]]:
        """Run a turn; return each of its sequences with the scores of all new positions."""
        for _ in range(count):
            members = self._draw.sample(range(3), self._draw.randint(2, 3))
            batch = [self._input(index) for index in members]
            for item, scores in zip(batch, self._runner.forward(batch), strict=True):
                yield list(item.history), scores

    def _input(self, index: int) -> ForwardInput:
        known, slot = self.known[index], self._slots[index]
        keep = self._draw.randint(max(0, len(known) - 6), len(known))
        keep = min(keep, LONGEST - 1)
        count = self._draw.randint(1, min(16, LONGEST - keep))
        self.known[index] = ids = known[:keep] + [self._draw.randrange(VOCAB_SIZE) for _ in range(count)]
        assert slot is not None
        return ForwardInput(slot, keep, ids[keep:], count, SamplingParams(), 0, ids, num_logprobs=VOCAB_SIZE)


def largest_error(runner: HeadScorer, reference: Any, seed: int) -> float:
    """Return the largest difference of any log-probability; choices must be equal."""
    session, error = Session(runner, seed), 0.0
    for ids, scores in session.turns(12):
        expected = plain_logprobs(reference, ids)[-len(scores.choices) :]
        assert list(scores.choices) == expected.argmax(-1).tolist()
        for reported, row in zip(scores.logprobs, expected, strict=True):
            assert len(reported.top) == VOCAB_SIZE
            error = max(error, *(abs(value - float(row[token])) for token, value in reported.top))
    assert max(map(len, session.known)) > 4 * WINDOW
    return error


def paged(kv_tokens: int, max_sequences: int, dtype: Any, device: str) -> PagedKvCache:
    """Return the memory of a GPU, as `make_kv_cache` does there."""
    return PagedKvCache(kv_tokens, max_sequences)


@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_equals_transformers(
    model_folder: FolderMaker, monkeypatch: pytest.MonkeyPatch, kind: str, is_paged: bool
) -> None:
    if is_paged:
        monkeypatch.setattr(torch_runner, "make_kv_cache", paged)
        monkeypatch.setattr(torch_runner, "create_kv_memory", lambda *_: None)  # no GPU to measure
    folder = model_folder(kind)
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    assert largest_error(served(folder), reference.eval(), seed=1 + is_paged) < 1e-4


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_loads_in_bfloat16(model_folder: FolderMaker, kind: str) -> None:
    runner = served(model_folder(kind), "bfloat16")
    assert runner.info.dtype == "bfloat16" and runner.info.context_length == CONTEXT
    assert [len(scores.choices) for _, scores in Session(runner, 0).turns(2)] != []
    assert runner.info.row_invariant


@pytest.mark.parametrize(("kind", "keyword"), [("gpt_oss", "s_aux"), ("gemma2", "softcap")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_omitted_part_of_attention_is_detected(
    model_folder: FolderMaker, monkeypatch: pytest.MonkeyPatch, kind: str, keyword: str, dtype: str
) -> None:
    plain = ragged.ragged_attention
    monkeypatch.setattr(
        ragged, "ragged_attention", lambda *args, **kwargs: plain(*args, **{**kwargs, keyword: None})
    )
    with pytest.raises(ModelError, match="differs from transformers"):
        served(model_folder(kind), dtype)


def test_a_window_longer_than_the_check_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tiny("mistral")
    model.config.sliding_window = 40
    model.save_pretrained(tmp_path)
    assert loaded(tmp_path).description.startswith("ragged")
    plain = ragged.ragged_attention
    monkeypatch.setattr(
        ragged,
        "ragged_attention",
        lambda *args, **kwargs: plain(*args, **{**kwargs, "sliding_window": None}),
    )
    with pytest.raises(ModelError, match="windows of all positions, not 40"):
        served(tmp_path)


def test_a_model_that_raises_is_rejected_in_one_line(
    model_folder: FolderMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("sizes\ndo not fit")

    monkeypatch.setattr(ragged, "ragged_attention", fails)
    with pytest.raises(
        ModelError, match="MistralForCausalLM cannot be computed: RuntimeError: sizes do not fit"
    ):
        served(model_folder("mistral"))
