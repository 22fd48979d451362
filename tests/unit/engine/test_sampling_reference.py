"""The head draws the same tokens as a plain reference, on random logits and parameters."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from flyserve.core.noise import BLOCK
from flyserve.core.request import SamplingParams
from flyserve.core.types import Coupling, SparseDistribution
from services.engine.base import ForwardInput
from services.engine.head.head import Head
from tests.support.reference_sampling import reference_choice, reference_logits

NUM_CASES = 250
VOCABULARIES = (3, 40, BLOCK, BLOCK + 1, 129, 777, 2500)


def drawn_logits(rng: np.random.Generator, num_rows: int, vocabulary: int) -> torch.Tensor:
    """Return peaked or flat logits, with ties or masked tokens in some cases."""
    logits = rng.normal(size=(num_rows, vocabulary)) * rng.choice([0.01, 0.3, 1.0, 3.0, 12.0])
    if rng.random() < 0.3:
        logits = np.round(logits * 2) / 2
    if rng.random() < 0.3:
        logits[:, rng.integers(0, vocabulary, 3)] += 8
    if rng.random() < 0.2 and vocabulary > BLOCK:
        logits[:, : vocabulary // 3] = -np.inf
    return torch.from_numpy(logits).to(torch.bfloat16 if rng.random() < 0.4 else torch.float32)


def drawn_sampling(rng: np.random.Generator, vocabulary: int, coupling: Coupling) -> SamplingParams:
    biases = {int(rng.integers(vocabulary)): 2.5, int(rng.integers(vocabulary)): float("-inf")}
    return SamplingParams(
        temperature=rng.choice([0.05, 0.7, 1.0, 1.5, 4.0]),
        top_k=int(rng.choice([0, 0, 1, 20, 64, 65, 1100, vocabulary - 1])),
        top_p=rng.choice([1.0, 1.0, 0.1, 0.5, 0.9, 0.999]),
        min_p=rng.choice([0.0, 0.0, 0.02, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.3, 0.7]),
        presence_penalty=rng.choice([0.0, 0.5, -0.5]),
        frequency_penalty=rng.choice([0.0, 0.25]),
        logit_bias=biases if vocabulary > 3 and rng.random() < 0.5 else {},
        min_tokens=int(rng.choice([0, 20])),
        stop_token_ids=(1, 5) if vocabulary > 5 else (),
        seed=int(rng.integers(2**63)),
        coupling=coupling,
    )


def cases(coupling: Coupling, seed: int) -> Iterator[tuple[torch.Tensor, ForwardInput]]:
    for number in range(NUM_CASES):
        rng = np.random.default_rng([seed, number])
        vocabulary, num_rows = int(rng.choice(VOCABULARIES)), int(rng.integers(1, 6))
        logits = drawn_logits(rng, num_rows, vocabulary)
        history = rng.integers(0, vocabulary, int(rng.integers(num_rows + 1, 60))).tolist()
        likely = logits.float().topk(min(3, vocabulary)).indices.numpy()
        for row in range(1, num_rows):
            if rng.random() < 0.6:
                history[len(history) - num_rows + row] = int(rng.choice(likely[row - 1]))
        drafts = [*history[len(history) - num_rows + 1 :], -1]
        # Which of equally likely tokens a truncated proposal contains is not defined.
        is_proposing = bool(rng.random() < 0.2) and not (logits.float().sort().values.diff() == 0).any()
        item = ForwardInput(
            slot=0,
            start=0,
            tokens=history,
            num_outputs=num_rows,
            sampling=drawn_sampling(rng, vocabulary, coupling),
            prompt_length=int(rng.integers(len(history))),
            history=history,
            drafts=drafts,
            proposals=proposals(rng, drafts[:-1], vocabulary) if rng.random() < 0.7 else (),
            is_proposing=is_proposing,
        )
        yield logits, item


def proposals(rng: np.random.Generator, drafts: list[int], vocabulary: int) -> tuple[SparseDistribution, ...]:
    listed = [list(dict.fromkeys([draft, *rng.integers(0, vocabulary, 9).tolist()])) for draft in drafts]
    return tuple(
        SparseDistribution(tuple(ids), tuple(rng.dirichlet(np.ones(len(ids))).tolist())) for ids in listed
    )


@pytest.mark.parametrize("few_tokens", [0, 2**20])
@pytest.mark.parametrize("coupling", Coupling)
def test_tokens_and_exclusions_equal_the_reference(
    coupling: Coupling, few_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare all cases twice: sampled in tensors, as large vocabularies are, and in numpy, as small ones."""
    monkeypatch.setattr("services.engine.head.head._FEW_TOKENS", few_tokens)
    heads = {vocabulary: Head(vocabulary) for vocabulary in VOCABULARIES}
    for logits, item in cases(coupling, 5):
        (scores,) = heads[logits.shape[1]](logits, [item])
        expected = []
        for row in range(item.num_outputs):
            processed = reference_logits(logits[row].float().numpy(), item, row)
            expected.append(reference_choice(processed, item, row))
        assert list(zip(scores.choices, scores.excluded, strict=True)) == expected, item


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize(("temperature", "top_p"), [(0.3, 0.9), (1.5, 0.95), (1.0, 1.0), (0.7, 0.01)])
def test_a_large_vocabulary_in_several_chunks_equals_the_reference(
    coupling: Coupling, temperature: float, top_p: float
) -> None:
    vocabulary, num_rows = 128_256, 10
    rng = np.random.default_rng(2)
    logits = torch.from_numpy(rng.normal(size=(num_rows, vocabulary)) * 2.5).to(torch.bfloat16)
    logits[::2, :3] += 12
    history = rng.integers(0, vocabulary, 20).tolist()
    history[-4] = 1
    sampling = SamplingParams(temperature=temperature, top_p=top_p, seed=3, coupling=coupling)
    drafts = [*history[len(history) - num_rows + 1 :], -1]
    item = ForwardInput(0, 0, history, num_rows, sampling, 5, history, drafts=drafts)
    (scores,) = Head(vocabulary)(logits, [item])
    rows = [reference_choice(logits[row].float().numpy(), item, row) for row in range(num_rows)]
    assert list(zip(scores.choices, scores.excluded, strict=True)) == rows


def test_penalties_follow_rollback_reuse_and_a_new_sequence_in_the_slot() -> None:
    """Compare a head that counts tokens step by step with one that begins at each step."""
    vocabulary, rng = 30, np.random.default_rng(4)
    head = Head(vocabulary)
    sampling = SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25)
    for _ in range(25):
        prompt_length = int(rng.integers(1, 40))
        history = rng.integers(0, vocabulary, prompt_length).tolist()
        computed = num_reused = int(rng.choice([0, rng.integers(prompt_length)]))
        for _ in range(12):
            num_rows = int(rng.integers(0, min(5, len(history) - computed) + 1))
            item = ForwardInput(
                slot=0,
                start=computed,
                tokens=history[computed:],
                num_outputs=num_rows,
                sampling=sampling,
                prompt_length=prompt_length,
                history=history,
                drafts=[*history[len(history) - num_rows + 1 :], -1] if num_rows else (),
                num_reused=num_reused,
                num_logprobs=0,
            )
            logits = torch.from_numpy(rng.normal(size=(num_rows, vocabulary))).float()
            begun = replace(item, start=0, tokens=history, num_reused=0)
            assert head(logits, [item]) == Head(vocabulary)(logits, [begun])
            kept = int(rng.integers(len(history) - min(8, len(history) - 1), len(history) + 1))
            history = [*history[:kept], *rng.integers(0, vocabulary, int(rng.integers(1, 7))).tolist()]
            num_reused = int(rng.integers(0, 3)) if kept + 3 < len(history) else 0
            computed = kept + num_reused
        if rng.random() < 0.3:
            head.forget(0)
