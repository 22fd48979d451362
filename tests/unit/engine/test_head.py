"""The head against plain formulas and transformers' own logits processors."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flyserve.core.request import SamplingParams
from flyserve.core.types import Coupling, EntropyEstimator
from services.engine.base import ForwardInput
from services.engine.head.facts import normalized_entropy, top_k_entropy
from services.engine.head.head import Head
from services.engine.head.logits_processors import LogitsProcessors

VOCAB_SIZE = 50
HISTORY = [3, 4, 3, 9, 9, 9, 12, 40, 3, 7]


def make_work(sampling: SamplingParams, num_outputs: int, **kwargs: Any) -> ForwardInput:
    history = kwargs.pop("history", HISTORY)
    drafts = [*history[len(history) - num_outputs + 1 :], -1]
    return ForwardInput(
        0, 0, history, num_outputs, sampling, kwargs.pop("prompt_length", 4), history, drafts=drafts, **kwargs
    )


def logits_of(num_rows: int, width: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(3)) * 4


def top_three(logits: torch.Tensor) -> torch.Tensor:
    return top_k_entropy(logits.topk(3).values, logits.logsumexp(-1, keepdim=True))


def test_entropies_follow_their_formulas() -> None:
    logits = logits_of(6)
    p = logits.double().softmax(-1)
    top = p.sort(descending=True).values[:, :3]
    torch.testing.assert_close(top_three(logits).double(), -(top * top.log()).sum(-1), rtol=1e-5, atol=1e-6)
    full = -(p * p.log()).sum(-1) / math.log(VOCAB_SIZE)
    torch.testing.assert_close(normalized_entropy(logits).double(), full, rtol=1e-5, atol=1e-6)


def test_normalized_entropy_survives_excluded_tokens() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf"), float("-inf")]])
    assert normalized_entropy(logits).item() == pytest.approx(0.5)


def test_padded_ids_are_neither_chosen_nor_counted() -> None:
    logits = logits_of(3)
    padded = torch.cat([logits, torch.full((3, 14), 100.0)], dim=1)
    item = [make_work(SamplingParams(), 3, entropy=EntropyEstimator.NORMALIZED)]
    assert Head(VOCAB_SIZE)(padded, item) == Head(VOCAB_SIZE)(logits, item)


def test_ties_go_to_argmax_in_bfloat16() -> None:
    logits = torch.zeros(2, VOCAB_SIZE, dtype=torch.bfloat16)
    (scores,) = Head(VOCAB_SIZE)(logits, [make_work(SamplingParams(), 2)])
    assert scores.choices == (0, 0)


def test_rows_go_to_their_sequences() -> None:
    logits = logits_of(5)
    sampling = SamplingParams(logit_bias={11: 1000.0})
    batch = [
        make_work(SamplingParams(), 2),
        make_work(SamplingParams(), 0),
        make_work(sampling, 2),
        make_work(SamplingParams(), 1, entropy=EntropyEstimator.NORMALIZED),
    ]
    first, none, biased, last = Head(VOCAB_SIZE)(logits, batch)
    assert none.choices == none.entropies == none.excluded == ()
    assert first.choices == tuple(logits[:2].argmax(-1).tolist())
    assert biased.choices == (11, 11)
    assert biased.entropies == pytest.approx(top_three(logits[2:4]).tolist())
    assert last.entropies == pytest.approx(normalized_entropy(logits[4:]).tolist())
    assert last.choices == (logits[4].argmax().item(),)


def test_repetition_penalty_equals_transformers_on_each_rows_own_prefix() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = logits_of(4)
    (scores,) = Head(VOCAB_SIZE)(logits, [make_work(SamplingParams(repetition_penalty=3.0), 4)])
    processor = RepetitionPenaltyLogitsProcessor(3.0)
    for row, choice in enumerate(scores.choices):
        prefix = torch.tensor([HISTORY[: len(HISTORY) - 3 + row]])
        assert choice == processor(prefix, logits[row : row + 1].clone()).argmax().item()


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(repetition_penalty=2.0), SamplingParams(presence_penalty=5.0, frequency_penalty=1.0)],
)
def test_the_rows_of_a_large_vocabulary_have_the_penalties_of_their_own_prefix(
    sampling: SamplingParams,
) -> None:
    history, width = list(range(20, 32)), 2**19  # four rows are a chunk, one is a slice of it
    logits = torch.zeros(10, width)
    logits[:, 20:32] = 10.0
    (scores,) = Head(width)(logits, [make_work(sampling, 10, history=history, prompt_length=0)])
    alone = [
        Head(width)(logits[:1], [make_work(sampling, 1, history=history[:length], prompt_length=0)])[0]
        for length in range(3, 13)
    ]
    assert scores.choices == tuple(each.choices[0] for each in alone)
    assert scores.choices[:3] == (23, 24, 25)


class DivisionOfGpus(TorchDispatchMode):
    """Divides by numbers of Python as torch does on a GPU, by their inverse."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.div.Tensor and not isinstance(args[1], torch.Tensor):
            return args[0] * torch.tensor(1 / args[1])
        return func(*args, **kwargs or {})


def test_the_penalty_of_a_verified_row_has_the_bits_of_one_that_is_decoded() -> None:
    sampling = SamplingParams(repetition_penalty=1.3)

    def penalized(logits: torch.Tensor, history: list[int]) -> torch.Tensor:
        processors, item = LogitsProcessors(VOCAB_SIZE), make_work(sampling, len(logits), history=history)
        blocks, maxima = logits.clone()[:, None], torch.empty(len(logits), 1)
        with DivisionOfGpus():
            processors.count([item], logits.device)
            processors.process(blocks, maxima, item, 0, torch.empty(1, VOCAB_SIZE))
        return blocks[:, 0]

    history, logits = list(range(20, 45)), logits_of(20).abs()
    decoded = [penalized(row[None], history[: 6 + place]) for place, row in enumerate(logits)]
    assert torch.equal(penalized(logits, history), torch.cat(decoded))


def test_stops_are_masked_row_by_row_before_min_tokens() -> None:
    logits = torch.zeros(4, VOCAB_SIZE)
    logits[:, 7] = 9.0
    # Four outputs choose the response's tokens 3, 4, 5 and 6.
    item = make_work(SamplingParams(stop_token_ids=(7, 40), min_tokens=5), 4)
    (scores,) = Head(VOCAB_SIZE)(logits, [item])
    assert [choice == 7 for choice in scores.choices] == [False, False, True, True]
    # Drafts after the rows are 40, 3, 7 and none.
    assert scores.excluded == (True, False, False, False)


def test_only_true_exclusion_counts_as_excluded() -> None:
    sampling = SamplingParams(logit_bias={40: -100.0, 3: float("-inf")})
    (scores,) = Head(VOCAB_SIZE)(logits_of(4), [make_work(sampling, 4)])
    assert scores.excluded == (False, True, False, False)


def test_entropy_is_of_the_raw_logits() -> None:
    logits = logits_of(2)
    sampling = SamplingParams(repetition_penalty=5.0, logit_bias={3: 50.0})
    (scores,) = Head(VOCAB_SIZE)(logits, [make_work(sampling, 2)])
    assert scores.entropies == pytest.approx(top_three(logits).tolist())


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9, seed=3)])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_end_their_own_request_with_an_error(
    value: float, sampling: SamplingParams
) -> None:
    logits = logits_of(6)
    batch = [make_work(sampling, 2), make_work(sampling, 2), make_work(sampling, 2)]
    expected = Head(VOCAB_SIZE)(logits, batch)
    broken = logits.clone()
    broken[2, 7] = value
    first, second, third = Head(VOCAB_SIZE)(broken, batch)
    assert (first, third) == (expected[0], expected[2])
    assert (second.choices, second.field) == ((), "")
    assert second.error.startswith("no token can be chosen at position 9: the model")


SAMPLED = SamplingParams(temperature=0.8, seed=3)
EVERY = dict.fromkeys(range(VOCAB_SIZE), -math.inf)
BUT_ONE = dict.fromkeys(range(1, VOCAB_SIZE), -math.inf)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED])
def test_a_row_without_any_possible_token_is_an_error_of_the_field_that_excludes_all(
    sampling: SamplingParams,
) -> None:
    (scores,) = Head(VOCAB_SIZE)(logits_of(2), [make_work(replace(sampling, logit_bias=EVERY), 2)])
    assert (scores.error, scores.field) == ("leaves no token to choose at position 9", "sampling.logit_bias")
    both = replace(sampling, logit_bias=BUT_ONE, min_tokens=9, stop_token_ids=(0,))
    (scores,) = Head(VOCAB_SIZE)(logits_of(2), [make_work(both, 2)])
    assert scores.error == "leaves no token to choose at position 9, together with sampling.min_tokens"
    (scores,) = Head(VOCAB_SIZE)(logits_of(2), [make_work(replace(sampling, logit_bias=BUT_ONE), 2)])
    assert (scores.choices, scores.error) == ((0, 0), "")


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SAMPLED, replace(SAMPLED, coupling=Coupling.REJECTION)]
)
@pytest.mark.parametrize("width", [VOCAB_SIZE, 2**19])
@pytest.mark.parametrize("cause", ["model", "request"])
def test_scores_end_before_a_draft_that_leaves_nothing_to_choose(
    sampling: SamplingParams, width: int, cause: str
) -> None:
    logits = logits_of(10, width)
    plain = make_work(sampling, 10, history=list(range(10, 22)), num_logprobs=2, with_gaps=True)
    (whole,) = Head(width)(logits, [plain])
    item, broken = plain, logits.clone()
    if cause == "model":
        broken[6] = math.nan
    else:  # token 0 is the only one left, and it is a stop token that may not come yet
        bias = {token: 0.0 if token else -math.inf for token in range(width)}
        item = replace(plain, sampling=replace(sampling, logit_bias=bias))
        broken[6, 1:] = -math.inf
    neighbour = make_work(sampling, 2)
    found, other = Head(width)(torch.cat([broken, logits[:2]]), [item, neighbour])
    assert (found.error, found.field) == ("", "")
    if cause == "model":
        expected = (whole.choices[:6], whole.logprobs[:6], whole.gaps[:6], whole.entropies[:6])
        assert (found.choices, found.logprobs, found.gaps, found.entropies) == expected
    lengths = {
        len(each) for each in (found.choices, found.entropies, found.excluded, found.logprobs, found.gaps)
    }
    assert lengths == {6} and not found.excluded[-1]
    assert other == Head(width)(logits[:2], [neighbour])[0]


@pytest.mark.parametrize("num_biases", [2, 40])
def test_biases_few_or_many_are_those_of_the_request_and_freed_with_it(num_biases: int) -> None:
    processors, logits = LogitsProcessors(VOCAB_SIZE), logits_of(2)
    for first in (0, 5, 5):
        biases = {token: 0.5 * token - 3 for token in range(first, first + num_biases)}
        expected = logits.clone()
        for token, bias in biases.items():
            expected[:, token] += bias
        blocks, maxima = logits.clone()[:, None], torch.empty(2, 1)
        item = make_work(SamplingParams(logit_bias=biases), 2)
        for rows in (slice(0, 1), slice(1, 2)):
            processors.process(blocks[rows], maxima[rows], item, rows.start, torch.empty(1, VOCAB_SIZE))
        assert torch.equal(blocks[:, 0], expected)
        assert torch.equal(maxima[:, 0], expected.amax(-1))
        assert len(processors) == 1
    processors.forget(item.slot)
    assert len(processors) == 0


def test_token_counts_are_freed_with_their_sequence() -> None:
    processors = LogitsProcessors(VOCAB_SIZE)
    item = make_work(SamplingParams(presence_penalty=0.5), 2)
    processors.count([item], torch.device("cpu"))
    assert len(processors) == 1
    processors.count([make_work(SamplingParams(), 2)], torch.device("cpu"))
    assert len(processors) == 0
    processors.count([item], torch.device("cpu"))
    processors.forget(item.slot)
    assert len(processors) == 0


LARGE_VOCABULARY = 32_768
"""More tokens than are looked at whole."""


@pytest.mark.parametrize("size", [VOCAB_SIZE, LARGE_VOCABULARY])
@pytest.mark.parametrize(
    "kept", [{}, {"top_p": 0.9}, {"top_p": 1e-300}, {"min_p": 0.5}, {"top_k": 40, "top_p": 0.9}]
)
@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-39, 1e-6, 1e-5])
def test_a_tiny_temperature_takes_the_argmax(temperature: float, kept: dict[str, Any], size: int) -> None:
    logits, sampling = logits_of(2, size), SamplingParams(temperature=temperature, seed=1, **kept)
    (scores,) = Head(size)(logits.clone(), [make_work(sampling, 2)])
    assert scores.choices == tuple(logits.argmax(-1).tolist())


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize("kept", [{}, {"top_p": 0.9}, {"min_p": 0.5}, {"top_k": 40, "top_p": 0.9}])
@pytest.mark.parametrize(
    ("temperature", "equal"), [(1e-4, 1e-4), (1e30, 1e6), (1e39, 1e6), (1e46, 1e6), (1.7e308, 1e6)]
)
@pytest.mark.parametrize("size", [VOCAB_SIZE, LARGE_VOCABULARY, LARGE_VOCABULARY + 1])
def test_every_other_temperature_draws_tokens_and_a_huge_one_as_the_largest(
    temperature: float, equal: float, kept: dict[str, Any], coupling: Coupling, size: int
) -> None:
    """Beside tokens that are excluded: stop tokens, and those that pad a vocabulary to whole blocks."""
    found = []
    for each in (temperature, equal):
        sampling = SamplingParams(temperature=each, seed=1, coupling=coupling, **kept)
        held_back = replace(sampling, min_tokens=20, stop_token_ids=(5, 6))
        (scores,) = Head(size)(logits_of(4, size), [make_work(held_back, 4)])
        assert set(scores.choices) <= {*range(size)} - {5, 6}
        found.append(scores.choices)
    assert found[0] == found[1]
    assert found[0][:3] != tuple(HISTORY[-3:]), "no draft stands for a token that is not drawn"


@pytest.mark.parametrize("top_p", [5e-324, 1e-300, 1e-9])
@pytest.mark.parametrize("level", [0.0, -50.0])
def test_a_tiny_nucleus_is_the_most_likely_token(top_p: float, level: float) -> None:
    logits, sampling = logits_of(2, LARGE_VOCABULARY) + level, SamplingParams(temperature=1.0, top_p=top_p)
    (scores,) = Head(LARGE_VOCABULARY)(logits.clone(), [make_work(sampling, 2)])
    assert scores.choices == tuple(logits.argmax(-1).tolist())


def test_sums_that_are_no_numbers_are_a_fault_and_no_hang() -> None:
    sampling = SamplingParams(temperature=1.0, top_p=0.9, seed=1)
    object.__setattr__(sampling, "temperature", 1e-39)
    with pytest.raises(FloatingPointError, match="a sum is NaN"):
        Head(LARGE_VOCABULARY)(logits_of(1, LARGE_VOCABULARY), [make_work(sampling, 1)])
