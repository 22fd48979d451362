"""The demo pair over HTTP with the `openai` package: the same results as over gRPC."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from demo.tasks import Task
from fly.types import Mode
from flyserve import Client, SpeculationParams
from tests.support.processes import Deployment

MODEL = "target"
EXACT = {"speculation": {"mode": "exact"}, "verdicts": True}
NUM_PROBLEMS = 6


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[OpenAI]:
    (url,) = deployment.router.urls
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def asking(task: Task, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": task.prompt}], **fields}


def test_problems_are_solved_in_a_chat(client: OpenAI, deployment: Deployment, problems: list[Task]) -> None:
    solved = []
    with Client(deployment.router.address) as grpc:
        for task in problems[:NUM_PROBLEMS]:
            chat = client.chat.completions.create(**asking(task), extra_body=EXACT)
            text = chat.choices[0].message.content or ""
            same = grpc.generate(f"{task.prompt}\n", speculation=SpeculationParams(mode=Mode.EXACT))
            assert text == same.text and chat.choices[0].finish_reason == "stop"
            assert chat.usage is not None and chat.usage.completion_tokens == len(same.tokens)
            solved.append(task.is_solved_by(text))
    assert sum(solved) >= NUM_PROBLEMS - 1


def test_a_streamed_chat_tells_verdicts_and_rounds(client: OpenAI, problems: list[Task]) -> None:
    task = problems[0]
    whole = client.chat.completions.create(**asking(task), extra_body=EXACT)
    text, rounds, statistics = "", [], None
    for chunk in client.chat.completions.create(**asking(task), stream=True, extra_body=EXACT):
        text += chunk.choices[0].delta.content or ""
        extension = (chunk.model_extra or {})["flyserve"]
        rounds += extension["rounds"]
        statistics = extension.get("statistics")
        assert {token["verdict"] for token in extension["tokens"]} <= {"exact", "corrected", "bonus", "plain"}
    assert text == whole.choices[0].message.content
    assert statistics is not None and len(rounds) == statistics["rounds"] and statistics["tau"] > 2
    assert sum(played["accepted"] for played in rounds) == statistics["accepted"]
    assert sum(played["verify_s"] for played in rounds) == pytest.approx(statistics["verify_s"])


def test_completions_with_all_that_openai_has(client: OpenAI, problems: list[Task]) -> None:
    prompt = f"{problems[0].prompt}\n"
    whole = client.completions.create(model=MODEL, prompt=prompt, extra_body=EXACT)
    stopped = client.completions.create(model=MODEL, prompt=prompt, stop="Answer", extra_body=EXACT)
    assert stopped.choices[0].text == whole.choices[0].text.partition("Answer")[0]
    asked: dict[str, Any] = {"model": MODEL, "prompt": prompt, "n": 2, "temperature": 1.0, "seed": 5}
    first, again = [client.completions.create(**asked, max_tokens=40, extra_body=EXACT) for _ in range(2)]
    texts = [[choice.text for choice in each.choices] for each in (first, again)]
    assert texts[0] == texts[1] and texts[0][0] != texts[0][1]
    completion = client.completions.create(
        model=MODEL, prompt=prompt, logprobs=3, max_tokens=10, extra_body=EXACT
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None and logprobs.top_logprobs is not None
    for logprob, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert logprob == pytest.approx(max(top.values())), "greedy and exact: each token is the likeliest"


def test_what_is_not_supported_is_rejected_by_name(client: OpenAI, problems: list[Task]) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    with pytest.raises(BadRequestError, match="not rendered by the model's chat template") as caught:
        client.chat.completions.create(**asking(problems[0]), tools=[tool])
    assert (caught.value.param, caught.value.code) == ("tools", "invalid_value")
