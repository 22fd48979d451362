"""Log-probabilities of prompts over HTTP and gRPC: those of transformers, however a prompt is divided."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import torch
from transformers import LlamaForCausalLM

from demo.tasks import Task
from flyserve import Client, SpeculationParams
from flyserve.core.types import Mode
from tests.support.processes import TARGET_MODEL, Deployment

TOLERANCE = 2e-3
"""Kernels of some CPUs, transformers' own too, are 1e-3 from exact arithmetic at one of 900 tokens."""


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    """The target in float64, which rounds alike on every CPU."""
    torch.set_num_threads(1)
    return LlamaForCausalLM.from_pretrained(TARGET_MODEL, dtype=torch.float64).eval()


@pytest.fixture(scope="module")
def http(deployment: Deployment) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=deployment.router.urls[0], timeout=600) as client:
        yield client


def scored(http: httpx2.Client, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    """The log-probabilities of each choice, as lm-eval asks for them."""
    asked = {"model": "target", "prompt": prompt, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
    response = http.post("/v1/completions", json={**asked, "max_tokens": 1, **fields})
    assert response.status_code == 200, response.text
    return [choice["logprobs"] for choice in response.json()["choices"]]


def expected(target: LlamaForCausalLM, ids: list[int]) -> list[float]:
    """Log-probabilities of each token after the first."""
    with torch.inference_mode():
        logprobs = target(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(logprobs[at, token]) for at, token in enumerate(ids[1:])]


def long_prompt(http: httpx2.Client, problems: list[Task], length: int) -> list[int]:
    text = "\n".join(problem.prompt for problem in problems)
    ids: list[int] = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return (ids * (1 + length // len(ids)))[:length]


@pytest.mark.parametrize("length", [2, 255, 256, 257, 900])
def test_a_prompt_has_the_models_own_values(
    http: httpx2.Client, target: LlamaForCausalLM, problems: list[Task], length: int
) -> None:
    ids = long_prompt(http, problems, length)
    for _ in range(2):  # the second time, the prefix cache has all of it
        (found,) = scored(http, ids)
        first, *rest = found["token_logprobs"]
        assert first is None and rest[:-1] == pytest.approx(expected(target, ids), abs=TOLERANCE)
        assert len(found["tokens"]) == length + 1


def test_choices_of_one_question_are_ranked_as_by_the_model(
    http: httpx2.Client, target: LlamaForCausalLM, problems: list[Task]
) -> None:
    context = long_prompt(http, problems, 300)
    answers = [[5, 6, 7], [20, 21], [100, 5], [7]]
    batch = [context + answer for answer in answers]
    for (found, ids), answer in zip(zip(scored(http, batch), batch, strict=True), answers, strict=True):
        # As lm-eval reads them: the tokens after the context, without the one that is generated.
        sums = sum(found["token_logprobs"][len(context) : -1])
        own = expected(target, ids)[-len(answer) :]
        assert sums == pytest.approx(sum(own), abs=len(own) * TOLERANCE)
        tops = found["top_logprobs"][len(context) : -1]
        for value, top, exact in zip(found["token_logprobs"][len(context) : -1], tops, own, strict=True):
            assert (value == max(top.values())) == (exact >= max(top.values()) - TOLERANCE)


def test_the_completion_is_that_of_a_request_without_echo(
    http: httpx2.Client, problems: list[Task], deployment: Deployment
) -> None:
    prompt = f"{problems[0].prompt}\n"
    plain = http.post(
        "/v1/completions", json={"model": "target", "prompt": prompt, "speculation": {"mode": "exact"}}
    ).json()["choices"][0]["text"]
    with Client(deployment.router.address) as client:
        exact = SpeculationParams(mode=Mode.EXACT)
        response = client.generate(prompt, speculation=exact, prompt_logprobs=2)
        assert response.text == plain and "".join(token.text for token in response.prompt) == prompt
        assert len(response.prompt) == response.prompt_tokens
        with client.stream(prompt, max_new_tokens=0, prompt_logprobs=2) as stream:
            (*_, last) = list(stream)
        assert last.finish_reason is not None and stream.response.prompt == response.prompt
        assert [len(token.top) for token in response.prompt] == [0] + [2] * (response.prompt_tokens - 1)
    (found,) = scored(http, prompt)
    assert found["token_logprobs"][1:-1] == pytest.approx([token.logprob for token in response.prompt][1:])
