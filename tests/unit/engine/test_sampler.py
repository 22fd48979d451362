"""Sampling: the tokens drawn, which depend on nothing but their own row."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flyserve.core.request import SamplingParams
from flyserve.core.types import Coupling, SparseDistribution
from services.engine.base import ForwardInput, Scores
from services.engine.head import head
from services.engine.head.head import Head

VOCAB_SIZE = 1000
WARM = SamplingParams(temperature=0.8, seed=7)
REJECTION = replace(WARM, coupling=Coupling.REJECTION)
KINDS = [
    SamplingParams(),
    WARM,
    replace(WARM, top_k=20, seed=2**64 - 1),
    replace(WARM, temperature=1.5, top_p=0.7, min_p=0.001),
    replace(WARM, repetition_penalty=1.4, logit_bias={3: 2.0}),
    REJECTION,
    replace(REJECTION, top_p=0.9),
    replace(WARM, stop_token_ids=(5,), min_tokens=9),
]


@pytest.fixture(params=[0, 2**14], autouse=True, ids=["in tensors", "in numpy"])
def few_tokens(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample small vocabularies as large ones are, and as they are."""
    monkeypatch.setattr("services.engine.head.head._FEW_TOKENS", request.param)


def logits_of(num_rows: int, vocabulary: int = VOCAB_SIZE, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def input_of(history: list[int], num_outputs: int, sampling: SamplingParams, **kwargs: Any) -> ForwardInput:
    drafts = [*history[len(history) - num_outputs + 1 :], -1]
    return ForwardInput(0, 0, history, num_outputs, sampling, 2, history, drafts=drafts, **kwargs)


def proposals_for(drafts: list[int]) -> tuple[SparseDistribution, ...]:
    return tuple(SparseDistribution((draft, 900), (0.75, 0.25)) for draft in drafts)


def scored(logits: torch.Tensor, *batch: ForwardInput) -> list[Scores]:
    return Head(logits.shape[1])(logits, [replace(item, slot=slot) for slot, item in enumerate(batch)])


@pytest.mark.parametrize("sampling", KINDS, ids=range(len(KINDS)))
def test_a_row_depends_on_nothing_but_itself(sampling: SamplingParams) -> None:
    """Draw the same tokens one by one, sixteen at once, and among seven other sequences."""
    history = [int(token) for token in np.random.default_rng(1).integers(0, VOCAB_SIZE, 24)]
    logits, proposals = logits_of(16), proposals_for(history[9:])
    (whole,) = scored(logits, input_of(history, 16, sampling, proposals=proposals, num_logprobs=2))
    for row in range(16):
        prefix = history[: 9 + row]
        draft = history[9 + row] if row < 15 else -1
        alone = replace(
            input_of(prefix, 1, sampling, proposals=proposals[row : row + 1], num_logprobs=2), drafts=[draft]
        )
        (single,) = scored(logits[row : row + 1], alone)
        assert (single.choices[0], single.excluded[0]) == (whole.choices[row], whole.excluded[row])
        assert dict(single.logprobs[0].top) == pytest.approx(dict(whole.logprobs[row].top))
    others = [input_of([1, 2, 3, 4], 2, other) for other in KINDS[:7]]
    batch = [*others[:4], input_of(history, 16, sampling, proposals=proposals, num_logprobs=2), *others[4:]]
    padding = logits_of(14, seed=5)
    assert scored(torch.cat([padding[:8], logits, padding[8:]]), *batch)[4].choices == whole.choices


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = logits_of(3)
    sampling = replace(WARM, temperature=0.3, top_k=2, logit_bias={3: 50.0})
    (scores,) = scored(logits, input_of([1, 2, 3, 4, 5], 3, sampling, num_logprobs=4))
    log_p = logits.double().log_softmax(-1)
    for row, reported in enumerate(scores.logprobs):
        assert reported.choice == pytest.approx(log_p[row, scores.choices[row]].item(), abs=1e-5)
        assert [token for token, _ in reported.top] == log_p[row].topk(4).indices.tolist()
        assert [value for _, value in reported.top] == pytest.approx(
            log_p[row].topk(4).values.tolist(), abs=1e-5
        )
    drafts = [reported.draft for reported in scores.logprobs]
    assert drafts[:2] == pytest.approx([log_p[0, 4].item(), log_p[1, 5].item()], abs=1e-5)
    assert drafts[2] is None


def test_log_probabilities_may_be_of_draft_and_choice_alone() -> None:
    (scores,) = scored(logits_of(2), input_of([1, 2, 3], 2, SamplingParams(), num_logprobs=0))
    assert [reported.top for reported in scores.logprobs] == [(), ()]


@pytest.mark.parametrize("most_logits", [2**21, 3 * VOCAB_SIZE], ids=["one chunk", "chunks of 2 rows"])
@pytest.mark.parametrize("sampling", KINDS[:6], ids=range(6))
def test_gaps_are_differences_of_log_probabilities(
    sampling: SamplingParams, most_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(head._CHUNK_LOGITS, "cpu", most_logits)
    history, logits = [1, 2, 3, 4, 5, 6, 7], logits_of(9).bfloat16()
    logits[3, 6] = 50.0  # the choice, unless it is excluded
    with_gaps = input_of(history, 5, sampling, with_gaps=True)
    before, scores, after = scored(
        logits, *[input_of(history, 2, WARM)] * 1, with_gaps, input_of(history, 2, WARM)
    )
    assert before.gaps == after.gaps == ()
    log_p = logits[2:7].double().log_softmax(-1)
    drafts = [4, 5, 6, 7]
    expected = [
        float(log_p[row, scores.choices[row]] - log_p[row, draft]) for row, draft in enumerate(drafts)
    ]
    assert scores.gaps == pytest.approx([*expected, 0.0], abs=1e-5)
    matches = [choice == draft for choice, draft in zip(scores.choices, drafts, strict=False)]
    assert [gap == 0.0 for gap in scores.gaps[:4]] == matches


def test_a_drafter_draws_from_the_distribution_that_it_reports() -> None:
    logits, counts = logits_of(1), Counter[int]()
    reported = set()
    for seed in range(300):
        sampling = replace(REJECTION, seed=seed)
        (scores,) = scored(logits, input_of([1, 2, 3], 1, sampling, is_proposing=True))
        counts[scores.choices[0]] += 1
        reported.update(scores.distributions)
    (q,) = reported
    assert len(q.ids) == 64 and sum(q.probabilities) == pytest.approx(1.0, abs=1e-12)
    assert set(q.ids) == set(logits[0].topk(64).indices.tolist())
    expected = (logits[0, list(q.ids)].double() / WARM.temperature).softmax(-1)
    assert q.probabilities == pytest.approx(expected.tolist(), rel=1e-5)
    likeliest = max(zip(q.probabilities, q.ids, strict=True))
    assert counts[likeliest[1]] / 300 == pytest.approx(likeliest[0], abs=0.09)


def test_a_proposal_with_few_tokens_left_is_short() -> None:
    sampling = replace(REJECTION, top_k=3)
    (scores,) = scored(logits_of(1), input_of([1, 2, 3], 1, sampling, is_proposing=True))
    assert len(scores.distributions[0].ids) == 3


@pytest.mark.parametrize("coupling", Coupling)
def test_at_temperature_0_the_coupling_does_not_matter(coupling: Coupling) -> None:
    sampling = SamplingParams(coupling=coupling)
    (scores,) = scored(logits_of(2), input_of([1, 2, 3], 2, sampling, is_proposing=True))
    assert scores.choices == tuple(logits_of(2).argmax(-1).tolist()) and scores.distributions == ()
