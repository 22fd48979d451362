"""With real weights in fp32: exact equals plain, and `official` equals the published loop."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from transformers import LlamaForCausalLM

from demo.tasks import Task
from demo.tokenizer import render
from fly.types import Mode
from flyserve import Client, Speculation
from tests.support.official_loop import official_response
from tests.support.processes import DRAFTER_MODEL, TARGET_MODEL, Deployment

pytestmark = pytest.mark.slow

TIE = 1e-4
"""Two logits this near may change places with the shape of a forward."""

MAX_NEW_TOKENS = 256
CONCURRENCY = 8


@dataclass(frozen=True)
class Difference:
    """Where two responses part, and how near the target's two best logits lie there."""

    problem: int
    position: int
    gap: float


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(TARGET_MODEL, dtype=torch.float32).eval()


def responses(deployment: Deployment, problems: Sequence[Task], speculation: Speculation) -> list[list[int]]:
    """Token ids of every response, several at a time."""
    with Client(deployment.router.address) as client, ThreadPoolExecutor(CONCURRENCY) as pool:

        def respond(task: Task) -> list[int]:
            response = client.generate(render(task.prompt), MAX_NEW_TOKENS, speculation=speculation)
            return [token.id for token in response.tokens]

        return list(pool.map(respond, problems))


@torch.inference_mode()
def gap_at(target: LlamaForCausalLM, ids: list[int]) -> float:
    """Between the two best logits after `ids`."""
    best = target(torch.tensor([ids])).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


def differences(
    left: list[list[int]], right: list[list[int]], gap: Callable[[int, int], float]
) -> list[Difference]:
    """The first difference of every pair that differs."""
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
    assert len(found) <= 1, found
    assert all(difference.gap <= TIE for difference in found), found


def test_exact_speculation_equals_plain_decoding(
    deployment: Deployment, problems: list[Task], target: LlamaForCausalLM
) -> None:
    plain = responses(deployment, problems, Speculation(mode=Mode.PLAIN))
    exact = responses(deployment, problems, Speculation(mode=Mode.EXACT))
    with Client(deployment.router.address) as client:
        prompts = [[piece.id for piece in client.tokenize(render(task.prompt))] for task in problems]
    assert_only_a_tie(
        differences(plain, exact, lambda p, position: gap_at(target, prompts[p] + plain[p][:position]))
    )


def test_official_equals_the_published_loop(
    deployment: Deployment, problems: list[Task], target: LlamaForCausalLM
) -> None:
    drafter = LlamaForCausalLM.from_pretrained(DRAFTER_MODEL, dtype=torch.float32).eval()
    served = responses(deployment, problems, Speculation(mode=Mode.FLY, preset="official", draft_length=15))
    with Client(deployment.router.address) as client:
        prompts = [[piece.id for piece in client.tokenize(render(task.prompt))] for task in problems]
    end = target.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    reference, gaps = [], []
    for prompt in prompts:
        ids, near = official_response(target, drafter, prompt, end, MAX_NEW_TOKENS)
        reference.append(ids)
        gaps.append(near)
    assert_only_a_tie(differences(reference, served, lambda p, position: gaps[p][position]))
