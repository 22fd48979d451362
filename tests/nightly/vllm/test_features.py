"""Requests of every kind on vLLM as on torch, in modes plain and exact, and every level of drafting."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from demo.tasks import Task
from demo.tokenizer import render
from flyserve import Client, SpeculationParams
from flyserve.core.grammar import Grammar, GrammarKind
from flyserve.core.request import SamplingParams
from flyserve.core.response import Response
from flyserve.core.types import Coupling, Mode
from tests.support.comparison import seed_of
from tests.support.processes import Deployment

pytestmark = pytest.mark.timeout(1800)

TOKENS, PROMPTS = 64, 6
GRAMMAR = Grammar(GrammarKind.REGEX, r'\{"answer": [0-9]{1,4}, "steps": \[[0-9]{1,3}(, [0-9]{1,3}){0,9}\]\}')
"""Without the spaces that a JSON Schema leaves open: the library of grammars has another version beside vLLM,
which allows others."""
CHAT = SamplingParams(temperature=0.7, top_p=0.9)
PENALTIES = SamplingParams(
    temperature=0.8, repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.2, min_tokens=20
)
REQUESTS: dict[str, dict[str, Any]] = {
    "chat": {"sampling": CHAT},
    "penalties": {"sampling": PENALTIES},
    "bias": {"sampling": SamplingParams(logit_bias={30: -100.0, 50: 1.5})},
    "grammar": {"grammar": GRAMMAR},
    "sampled grammar": {"grammar": GRAMMAR, "sampling": CHAT},
    "logprobs": {"logprobs": 4, "prompt_logprobs": 2},
    "prediction": {"prediction": "#### 4"},
}


def answers(address: str, problems: list[Task], mode: Mode, options: dict[str, Any]) -> list[Response]:
    """Return the responses to the first prompts, each with a seed of its own."""
    given = {name: value for name, value in options.items() if name != "sampling"}
    sampling = options.get("sampling", SamplingParams())
    with Client(address) as client, ThreadPoolExecutor(PROMPTS) as pool:

        def respond(number: int) -> Response:
            own = SamplingParams(**{**_fields(sampling), "seed": seed_of(number)})
            speculation = SpeculationParams(mode=mode)
            return client.generate(render(problems[number].prompt), TOKENS, own, speculation, **given)

        return list(pool.map(respond, range(PROMPTS)))


def _fields(sampling: SamplingParams) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in SamplingParams.__dataclass_fields__}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_response_is_that_of_torch(
    router: str, builtin: Deployment, problems: list[Task], name: str
) -> None:
    options = REQUESTS[name]
    plainly = {field: value for field, value in options.items() if field != "prediction"}
    expected = answers(builtin.router.address, problems, Mode.PLAIN, plainly)
    for mode in (Mode.PLAIN, Mode.EXACT) if plainly == options else (Mode.EXACT,):
        found = answers(router, problems, mode, options)
        for ours, theirs in zip(found, expected, strict=True):
            assert [token.id for token in ours.tokens] == [token.id for token in theirs.tokens]
            for one, other in zip(ours.tokens, theirs.tokens, strict=True):
                assert (one.logprobs is None) == (other.logprobs is None)
                if one.logprobs is not None and other.logprobs is not None:
                    assert one.logprobs.token == pytest.approx(other.logprobs.token, abs=1e-3)
        if "grammar" in options:
            assert all(response.text.startswith('{"answer": ') for response in found)


def test_the_draft_model_answers_by_itself(router: str, builtin: Deployment, problems: list[Task]) -> None:
    found, expected = (
        answers(address, problems, Mode.DRAFT, REQUESTS["penalties"])
        for address in (router, builtin.router.address)
    )
    assert [response.text for response in found] == [response.text for response in expected]


def test_a_drafter_uses_every_level(router: str, problems: list[Task]) -> None:
    """Its sub-drafter supplies tokens, and it drafts while the target verifies."""
    responses = answers(router, problems, Mode.FLY, {})
    assert sum(response.statistics.sub_drafter_tokens for response in responses)


def test_drafts_are_judged_by_rejection_sampling(router: str, problems: list[Task]) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.95, coupling=Coupling.REJECTION)
    first, second = (answers(router, problems, Mode.EXACT, {"sampling": sampling}) for _ in range(2))
    assert [response.text for response in first] == [response.text for response in second]
