"""Compare responses: their first differences, and whether rounding explains these."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from demo.tasks import Task
from demo.tokenizer import render
from flyserve import Client, SamplingParams, SpeculationParams
from flyserve.core.noise import Domain, noise_keys, token_noise
from flyserve.core.response import Response
from flyserve.core.types import Mode

TIE = 1e-4
"""Two logits closer than this may change order with the shape of a forward."""

MAX_NEW_TOKENS = 256
CONCURRENCY = 8
GREEDY = SamplingParams()


@dataclass(frozen=True)
class Difference:
    """The first difference of two responses, and the gap between the target's two best tokens there."""

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
    """Return the token ids of every response of the router at `address`, as `answers` does."""
    return [ids_of(answer) for answer in answers(address, problems, speculation, sampling, concurrency)]


def answers(
    address: str,
    problems: Sequence[Task],
    speculation: SpeculationParams,
    sampling: SamplingParams = GREEDY,
    concurrency: int = CONCURRENCY,
) -> list[Response]:
    """Return every response of the router at `address`; requests run concurrently.

    Each problem has its own seed instead of that of `sampling`.
    """
    with Client(address) as client, ThreadPoolExecutor(concurrency) as pool:

        def respond(number: int) -> Response:
            own = replace(sampling, seed=seed_of(number))
            return client.generate(render(problems[number].prompt), MAX_NEW_TOKENS, own, speculation)

        return list(pool.map(respond, range(len(problems))))


def ids_of(response: Response) -> list[int]:
    """Return the tokens of a response."""
    return [token.id for token in response.tokens]


def seed_of(number: int) -> int:
    """Return the seed of problem `number`."""
    return 1000 + number


def prompt_ids(address: str, problems: Sequence[Task]) -> list[list[int]]:
    """Return the token ids of every prompt."""
    with Client(address) as client:
        return [[piece.id for piece in client.tokenize(render(task.prompt))] for task in problems]


@torch.inference_mode()
def gap_after(target: PreTrainedModel, ids: list[int], temperature: float = 0.0, seed: int = 0) -> float:
    """Return the gap between the two best logits after `ids`, with the shared noise if sampling."""
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
    """Return the first difference of every differing pair; `gap` takes the problem and the position."""
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
    """Assert that at most one sequence differs, and only where two candidates tie."""
    assert len(found) <= 1, found
    assert all(difference.gap <= TIE for difference in found), found


class PlainResponses:
    """The plain responses of a router, which others must equal but for a tie."""

    def __init__(
        self,
        router: str,
        problems: Sequence[Task],
        target: PreTrainedModel,
        sampling: SamplingParams = GREEDY,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """Send the problems to the router at this address; `target` is the model behind it."""
        self.problems = problems
        self.sampling = sampling
        self._target = target
        self._prompts = prompt_ids(router, problems)
        plain = SpeculationParams(mode=Mode.PLAIN)
        self._plain = responses(router, problems, plain, sampling, concurrency)

    def assert_equals(self, found: list[list[int]]) -> None:
        """Assert that responses to these problems are the plain ones."""

        def gap(problem: int, position: int) -> float:
            ids = self._prompts[problem] + self._plain[problem][:position]
            return gap_after(self._target, ids, self.sampling.temperature, seed_of(problem))

        assert_only_a_tie(differences(self._plain, found, gap))
