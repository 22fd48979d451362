"""Responses side by side: where they part, and whether rounding may excuse it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from demo.tasks import Task
from demo.tokenizer import render
from fly.noise import Domain, noise_keys, token_noise
from flyserve import Client, SamplingParams, SpeculationParams

TIE = 1e-4
"""Two logits this near may change places with the shape of a forward."""

MAX_NEW_TOKENS = 256
CONCURRENCY = 8
GREEDY = SamplingParams()


@dataclass(frozen=True)
class Difference:
    """Where two responses part, and how near the target's two best candidates lie there."""

    problem: int
    position: int
    gap: float


def responses(
    address: str,
    problems: Sequence[Task],
    speculation: SpeculationParams,
    sampling: SamplingParams = GREEDY,
    concurrency: int = CONCURRENCY,
) -> list[list[int]]:
    """Token ids of every response of the router at `address`, several at a time.

    The seed of a problem is its number, beyond that of `sampling`.
    """
    with Client(address) as client, ThreadPoolExecutor(concurrency) as pool:

        def respond(number: int) -> list[int]:
            own = replace(sampling, seed=seed_of(number))
            prompt = render(problems[number].prompt)
            response = client.generate(prompt, MAX_NEW_TOKENS, own, speculation)
            return [token.id for token in response.tokens]

        return list(pool.map(respond, range(len(problems))))


def seed_of(number: int) -> int:
    """The seed of problem `number`."""
    return 1000 + number


def prompt_ids(address: str, problems: Sequence[Task]) -> list[list[int]]:
    """Token ids of every prompt."""
    with Client(address) as client:
        return [[piece.id for piece in client.tokenize(render(task.prompt))] for task in problems]


@torch.inference_mode()
def gap_after(target: PreTrainedModel, ids: list[int], temperature: float = 0.0, seed: int = 0) -> float:
    """Between the two best candidates after `ids`, in logits; when sampling, the shared noise is added."""
    logits: torch.Tensor = target(torch.tensor([ids])).logits[0, -1].double()
    if temperature:
        words = [np.array([value], dtype=np.uint64) for value in (seed, len(ids), Domain.SHARED)]
        noise = token_noise(np.arange(len(logits))[None], noise_keys(*words))[0]
        logits += temperature * torch.from_numpy(noise)
    best = logits.topk(2).values
    return float(best[0] - best[1])


def differences(
    left: list[list[int]], right: list[list[int]], gap: Callable[[int, int], float]
) -> list[Difference]:
    """The first difference of every pair that differs; `gap` is told its problem and position."""
    found = []
    for problem, (one, other) in enumerate(zip(left, right, strict=True)):
        if one != other:
            position = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)),
            )
            found.append(Difference(problem, position, gap(problem, position)))
    return found


def assert_only_a_tie(found: list[Difference]) -> None:
    """At most one sequence differs, and only where two candidates tie."""
    assert len(found) <= 1, found
    assert all(difference.gap <= TIE for difference in found), found
