"""Rows of log-probabilities against the builtin head: entropies, choices, draws."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fly.errors import InternalError
from fly.request import SamplingParams
from fly.types import Coupling, SparseDistribution
from services.engine.base import ForwardInput, Scores
from services.engine.head.head import Head
from services.engine.vllm.rows import Rows, last_rows
from services.engine.vllm.scoring import num_candidates, score_rows, top_k_entropy

VOCAB_SIZE = 96
LOGITS = hnp.arrays(np.float32, (3, VOCAB_SIZE), elements=st.floats(-30, 30, width=16))
DRAFTS = st.tuples(st.integers(0, VOCAB_SIZE - 1), st.integers(0, VOCAB_SIZE - 1))


def rows_of(logits: np.ndarray, drafts: tuple[int, ...], count: int) -> Rows:
    """Return the rows that vLLM makes of some logits."""
    logprobs = torch.from_numpy(logits).log_softmax(-1)
    top = logprobs.topk(count, dim=-1)
    following = torch.tensor([*drafts, 0])[:, None]
    ids = torch.cat([following, top.indices], dim=1)
    values = torch.cat([logprobs.gather(1, following), top.values], dim=1)
    return Rows(ids.numpy(), values.numpy())


def by_the_head(
    logits: np.ndarray,
    drafts: tuple[int, ...],
    sampling: SamplingParams,
    proposals: tuple[SparseDistribution, ...] = (),
) -> Scores:
    tokens = [1, *drafts]
    item = ForwardInput(
        slot=0, start=7, tokens=tokens, num_outputs=3, sampling=sampling, prompt_length=8, num_logprobs=2,
        history=[0] * 7 + tokens, drafts=[*drafts, -1], proposals=proposals,
    )  # fmt: skip
    (scores,) = Head(VOCAB_SIZE)(torch.from_numpy(logits), [item])
    return scores


def by_rows(
    logits: np.ndarray,
    drafts: tuple[int, ...],
    sampling: SamplingParams,
    proposals: tuple[SparseDistribution, ...] = (),
) -> Scores:
    count = num_candidates(sampling, 2, 8, VOCAB_SIZE)
    rows = rows_of(logits, drafts, count)
    return score_rows(rows, [*drafts, -1], sampling, 8, proposals, 2, VOCAB_SIZE)


@given(LOGITS, DRAFTS)
def test_greedy_scores_are_those_of_the_head(logits: np.ndarray, drafts: tuple[int, int]) -> None:
    expected, found = (by(logits, drafts, SamplingParams()) for by in (by_the_head, by_rows))
    assert found.entropies == pytest.approx(expected.entropies, abs=1e-5)
    assert found.excluded == expected.excluded
    for row in range(3):
        # Logits that differ by less than the rounding of their log-probabilities tie.
        tied = np.flatnonzero(logits[row] >= logits[row].max() - 1e-5)
        assert found.choices[row] == expected.choices[row] or (len(tied) > 1 and found.choices[row] in tied)
        assert found.logprobs[row].draft == pytest.approx(expected.logprobs[row].draft, abs=1e-4)
        assert found.logprobs[row].choice == pytest.approx(expected.logprobs[row].choice, abs=1e-4)
        top, wanted = (dict(each.logprobs[row].top).values() for each in (found, expected))
        assert sorted(top) == pytest.approx(sorted(wanted), abs=1e-4)


SAMPLED = st.builds(
    SamplingParams,
    temperature=st.floats(0.2, 2.0),
    top_k=st.integers(1, 30),
    top_p=st.floats(0.3, 1.0),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**63),
    coupling=st.sampled_from(Coupling),
)


@given(st.integers(0, 2**32 - 1), SAMPLED)
def test_draws_with_top_k_are_those_of_the_head(seed: int, sampling: SamplingParams) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(scale=3.0, size=(3, VOCAB_SIZE)).astype(np.float32)
    likely = np.argsort(-logits, axis=1)
    drafts = (int(likely[0, 0]), int(likely[1, random.integers(VOCAB_SIZE)]))
    proposals = tuple(
        SparseDistribution(tuple(dict.fromkeys([draft, 3, 4])), (0.5, 0.25, 0.25))
        if draft not in (3, 4)
        else SparseDistribution((draft,), (1.0,))
        for draft in drafts
    )
    expected, found = (by(logits, drafts, sampling, proposals) for by in (by_the_head, by_rows))
    assert found.choices == expected.choices
    assert found.excluded == expected.excluded


def test_of_equally_likely_tokens_the_lowest_id_is_chosen() -> None:
    rows = Rows(np.array([[0, 9, 4, 7]]), np.array([[-2.0, -1.0, -1.0, -1.5]], dtype=np.float32))
    assert score_rows(rows, [-1], SamplingParams(), 1).choices == (4,)


def test_tokens_that_tie_beyond_the_candidates_are_not_drawn() -> None:
    rows = Rows(np.array([[0, 9, 4, 7]]), np.log(np.array([[0.1, 0.5, 0.1, 0.1]], dtype=np.float32)))
    for seed in range(50):
        sampling = SamplingParams(temperature=1.0, top_k=2, seed=seed)
        assert score_rows(rows, [-1], sampling, 1, vocab_size=VOCAB_SIZE).choices == (9,)


def test_all_candidates_may_be_drawn_if_there_are_no_others() -> None:
    rows = Rows(np.array([[0, 0, 1, 2]]), np.log(np.array([[0.4, 0.4, 0.3, 0.3]], dtype=np.float32)))
    drawn = {
        score_rows(rows, [-1], SamplingParams(temperature=1.0, top_k=3, seed=seed), 1, vocab_size=3).choices
        for seed in range(50)
    }
    assert drawn == {(0,), (1,), (2,)}


def test_entropy_of_certain_and_impossible_tokens_is_zero() -> None:
    assert top_k_entropy(np.array([[0.0, -np.inf, -np.inf]], dtype=np.float32)) == [0.0]


def test_logits_that_are_not_finite_are_an_error_with_the_position() -> None:
    rows = Rows(np.zeros((2, 4), dtype=np.int64), np.full((2, 4), -1.0, dtype=np.float32))
    rows.logprobs[1] = np.nan
    with pytest.raises(InternalError, match="position 31"):
        score_rows(rows, [1, -1], SamplingParams(), 30)


def test_padding_beyond_the_vocabulary_is_never_chosen() -> None:
    rows = Rows(np.array([[0, 99, 4, 7]]), np.array([[-2.0, -0.5, -1.0, -1.5]], dtype=np.float32))
    assert rows.within(100) is rows
    assert score_rows(rows.within(50), [-1], SamplingParams(), 1).choices == (4,)


def test_only_the_last_rows_are_kept_and_those_from_the_cache_are_not_read() -> None:
    ids, logprobs = np.arange(40).reshape(10, 4), np.full((10, 4), np.nan, dtype=np.float32)
    logprobs[7:] = -1.0
    rows = last_rows(ids, logprobs, 3, width=2)
    assert rows.following == [28, 32, 36] and rows.ids.shape == (3, 2)
    assert np.isfinite(rows.logprobs).all()
    ids[:] = 0
    assert rows.following == [28, 32, 36]
