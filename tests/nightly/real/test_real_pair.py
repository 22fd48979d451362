"""Gemma 3 270M with SmolLM2 as its drafter: the whole stack, with mapped vocabularies."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from demo.real.texts import BEGINNINGS
from flyserve import Client, SpeculationParams
from flyserve.cli.up import running_deployment
from flyserve.core.response import Response
from flyserve.core.types import Mode
from orchestration.deployment.one_line import OneLine, deployment_content, one_line_deployment
from orchestration.local.runner import LocalDeployment
from tests.nightly.real.real_rig import Reference

pytestmark = pytest.mark.timeout(3600)

MAX_NEW_TOKENS = 48
CONCURRENCY = 4
WINDOW = 512
STORY = "The old man walked to the harbour and counted the boats. " * 60


@pytest.fixture(scope="module")
def deployed(gemma: Path, folder: Path) -> Iterator[LocalDeployment]:
    """Yield the deployment of `flyserve serve TARGET --draft DRAFTER --dtype float32`."""
    line = OneLine(target=str(gemma), draft=str(folder), dtype="float32", port=0, grpc_port=0)
    content = deployment_content(line)
    assert content["drafter"]["vocabulary"] == "text"
    with running_deployment(one_line_deployment(content), 600, False, "tests") as deployed:
        yield deployed


@pytest.fixture(scope="module")
def client(deployed: LocalDeployment) -> Iterator[Client]:
    with Client(deployed.address, retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """Return the responses of plain decoding, which the first deployment fills in."""
    return []


@pytest.fixture(scope="module")
def gemma_reference(gemma: Path) -> Reference:
    return Reference(gemma)


def respond(client: Client, mode: Mode) -> list[Response]:
    way = SpeculationParams(mode=mode)
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        sent = pool.map(lambda text: client.generate(text, MAX_NEW_TOKENS, speculation=way), BEGINNINGS)
        return list(sent)


def ids_of(response: Response) -> list[int]:
    return [token.id for token in response.tokens]


def test_exact_equals_plain_on_every_prompt(client: Client, plain: list[list[int]]) -> None:
    if not plain:
        plain += map(ids_of, respond(client, Mode.PLAIN))
    assert len(plain) == 20 and sum(map(len, plain)) > 0.8 * len(plain) * MAX_NEW_TOKENS
    exact = respond(client, Mode.EXACT)
    assert [ids_of(response) for response in exact] == plain
    tokens = sum(response.statistics.draft_round_tokens for response in exact)
    rounds = sum(response.statistics.draft_rounds for response in exact)
    print(f"{rounds} rounds with a draft, tau {tokens / rounds:.2f}")
    assert tokens > 1.3 * rounds > 0


def test_completions_equal_generate_also_beyond_the_window(
    client: Client, deployed: LocalDeployment, gemma_reference: Reference
) -> None:
    tokenizer = gemma_reference.tokenizer
    prompts = [tokenizer.encode(text) for text in (*BEGINNINGS[:4], STORY)]
    assert all(prompt[0] == tokenizer.bos_token_id for prompt in prompts)
    assert len(prompts[-1]) > WINDOW + 100
    expected = [gemma_reference.generate(prompt, MAX_NEW_TOKENS) for prompt in prompts]
    way = SpeculationParams(mode=Mode.EXACT)
    found = [ids_of(client.generate(prompt, MAX_NEW_TOKENS, speculation=way)) for prompt in prompts]
    gemma_reference.assert_same(prompts, expected, found)
    with OpenAI(base_url=f"{deployed.http_url}/v1", api_key="none", max_retries=0, timeout=600) as http:
        done = http.completions.create(
            model=http.models.list().data[0].id,
            prompt=STORY,
            max_tokens=MAX_NEW_TOKENS,
            temperature=0,
            extra_body={"speculation": {"mode": "exact"}},
        )
    assert done.choices[0].text == gemma_reference.text(found[-1])
