"""Chats with SmolLM2 in fp32 equal transformers' `generate`, token for token."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from flyserve import Client
from tests.nightly.real.prompts import PROMPTS
from tests.nightly.real.real_rig import MODEL_NAME, Reference, chat, served_ids

pytestmark = pytest.mark.timeout(3600)

MAX_NEW_TOKENS = 48
CONCURRENCY = 4


@pytest.fixture(scope="module")
def prompts(reference: Reference) -> list[list[int]]:
    return [reference.chat_ids(chat(question)) for question in PROMPTS]


@pytest.fixture(scope="module")
def expected(reference: Reference, prompts: list[list[int]]) -> list[list[int]]:
    return [reference.generate(prompt, MAX_NEW_TOKENS) for prompt in prompts]


def test_the_questions_differ_and_their_prompts_are_those_of_the_template(
    client: Client, prompts: list[list[int]]
) -> None:
    assert len(set(PROMPTS)) == len(PROMPTS) > 20
    assert [served_ids(client, chat(question)) for question in PROMPTS] == prompts


def test_a_chat_over_http_equals_generate(
    http: OpenAI, reference: Reference, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    def ask(question: str) -> tuple[str, list[int]]:
        done = http.chat.completions.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": question}],
            max_tokens=MAX_NEW_TOKENS,
            temperature=0,
            extra_body={"verdicts": True},
        ).choices[0]
        tokens = (done.model_extra or {})["flyserve"]["tokens"]
        return done.message.content or "", [token["id"] for token in tokens]

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        texts, ids = zip(*pool.map(ask, PROMPTS), strict=True)
    print("near ties:", reference.assert_same(prompts, expected, ids))
    assert list(texts) == [reference.text(each) for each in ids]
