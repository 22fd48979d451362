"""From rows of log-probabilities to choices, entropies and log-probabilities, as the builtin head has them.

The choice is the most likely token; of equal ones, among the candidates that vLLM returned, the one with the
lowest id. Sampling with `top_k` is exact: the candidates hold every token that may be drawn.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fly.errors import InternalError
from fly.request import SamplingParams
from fly.types import PositionLogprobs, SparseDistribution
from services.engine.base import Scores
from services.engine.head.candidates import FewCandidates
from services.engine.head.sampler import Sampler, SampleRequest, sampled_scores
from services.engine.vllm.rows import Ids, LogProbs, Rows

TOP_K = 3
_SEEN_TIES = 16
"""Candidates beyond `top_k`, of which more are needed the larger it is: tokens that tie with the last one."""


def num_candidates(sampling: SamplingParams, num_logprobs: int | None, least: int, most: int) -> int:
    """Return the number of candidates that a sequence needs at each position."""
    wanted = max(least, num_logprobs or 0)
    if sampling.temperature > 0:
        wanted = max(wanted, 2 * sampling.top_k + _SEEN_TIES)
    return min(wanted, most)


def top_k_entropy(logprobs: LogProbs) -> list[float]:
    """Return `-sum p ln p` over the three largest probabilities, in nats, per row.

    `logprobs` are (rows, n), in descending order, of the full softmax.
    """
    log_p = logprobs[:, :TOP_K].astype(np.float64)
    p = np.exp(log_p)
    terms = np.where(p > 0, p * np.where(p > 0, log_p, 0.0), 0.0)
    entropies: list[float] = (-terms.sum(axis=1)).tolist()
    return entropies


def greedy_choices(rows: Rows) -> list[int]:
    """Return the most likely token of each row; of equally likely ones that with the lowest id."""
    ids, logprobs = rows.ids[:, 1:], rows.logprobs[:, 1:]
    tied = np.where(logprobs == logprobs[:, :1], ids, np.iinfo(np.int64).max)
    choices: list[int] = tied.min(axis=1).tolist()
    return choices


def check_finite(rows: Rows, first_position: int) -> None:
    """Raise `InternalError` if the model computed no valid distribution at a position."""
    is_finite = np.isfinite(rows.logprobs[:, 1])
    if not is_finite.all():
        position = first_position + int(is_finite.argmin())
        raise InternalError(f"no token can be chosen at position {position}: the model's logits are NaN")


def score_rows(
    rows: Rows,
    drafts: Sequence[int],
    sampling: SamplingParams,
    first_position: int,
    proposals: Sequence[SparseDistribution] = (),
    num_logprobs: int | None = None,
    vocab_size: int = 0,
) -> Scores:
    """Score consecutive positions.

    Args:
        rows: One per position.
        drafts: Draft that follows each position; -1 for none.
        sampling: Parameters of the sequence.
        first_position: Position of the first choice.
        proposals: Distributions that the drafts were drawn from.
        num_logprobs: Most likely tokens to report log-probabilities of; None reports none.
        vocab_size: Number of tokens of which the rows hold the most likely ones.

    Raises:
        InternalError: The model computed no valid distribution.
    """
    check_finite(rows, first_position)
    entropies = top_k_entropy(rows.logprobs[:, 1:])
    if sampling.temperature > 0:
        requests = sample_requests(sampling, first_position, drafts, proposals)
        scores = sampled_scores(Sampler(_candidates(rows, sampling, vocab_size), requests).draw(), entropies)
    else:
        scores = Scores(tuple(greedy_choices(rows)), tuple(entropies), (False,) * len(rows))
    if num_logprobs is None:
        return scores
    return replace(scores, logprobs=position_logprobs(rows, scores.choices, drafts, num_logprobs))


def sample_requests(
    sampling: SamplingParams,
    first_position: int,
    drafts: Sequence[int],
    proposals: Sequence[SparseDistribution] = (),
    is_proposing: bool = False,
) -> list[SampleRequest]:
    """Return a request per position; a draft of -1 stands for none."""
    given = [*proposals, *[SparseDistribution((), ())] * (len(drafts) - len(proposals))]
    return [
        SampleRequest(
            sampling, first_position + index, draft, proposal if proposal.ids else None, is_proposing
        )
        for index, (draft, proposal) in enumerate(zip(drafts, given, strict=True))
    ]


def position_logprobs(
    rows: Rows, choices: Sequence[int], drafts: Sequence[int], count: int
) -> tuple[PositionLogprobs, ...]:
    """Return log-probabilities of each position's draft, choice and `count` most likely tokens."""
    is_choice = rows.ids[:, 1:] == np.array(choices)[:, None]
    of_choices = np.where(is_choice, rows.logprobs[:, 1:], -np.inf).max(axis=1).tolist()
    of_drafts = rows.logprobs[:, 0].tolist()
    ids, values = rows.ids[:, 1 : 1 + count].tolist(), rows.logprobs[:, 1 : 1 + count].tolist()
    return tuple(
        PositionLogprobs(
            draft=of_draft if draft >= 0 else None,
            choice=of_choice,
            top=tuple(zip(top_ids, top_values, strict=True)),
        )
        for draft, of_draft, of_choice, top_ids, top_values in zip(
            drafts, of_drafts, of_choices, ids, values, strict=True
        )
    )


def _candidates(rows: Rows, sampling: SamplingParams, vocab_size: int) -> FewCandidates:
    """Return the candidates of each row.

    Tokens that tie with the k-th may be drawn as well. If even the last candidate ties with it, further ones
    may be missing; then none of them may be drawn.
    """
    ids: Ids = rows.ids[:, 1:]
    logprobs: LogProbs = rows.logprobs[:, 1:]
    if 0 < sampling.top_k <= ids.shape[1] < vocab_size:
        is_open: NDArray[np.bool_] = logprobs[:, sampling.top_k - 1] == logprobs[:, -1]
        hides = is_open[:, None] & (logprobs == logprobs[:, -1:]) & (logprobs < logprobs[:, :1])
        logprobs = np.where(hides, -np.inf, logprobs).astype(np.float32)
    return FewCandidates(ids, logprobs, [sampling] * len(rows))


def draw_drafts(rows: Rows, sampling: SamplingParams, position: int, most: int) -> Scores:
    """Draw the draft at one position from at most `most` candidates; report the distribution if needed."""
    check_finite(rows, position)
    candidates = FewCandidates(rows.ids[:, 1 : 1 + most], rows.logprobs[:, 1 : 1 + most], [sampling])
    drawn = Sampler(candidates, sample_requests(sampling, position, [-1], is_proposing=True)).draw()
    return sampled_scores(drawn, [0.0])
