"""A limit on how unlikely a rescued token may be, with the demo pair."""

from collections.abc import AsyncIterator

import pytest

from flyserve import AsyncClient, DraftLength, Response, SamplingParams, SpeculationParams
from flyserve.core.types import Mode, Verdict
from tests.contract.grammar_rig import serving_pair

PROMPTS = [
    f"Q: {name} has {number} apples and buys {number + 2} more. How many apples does {name} have now?\n"
    for number, name in enumerate(("Tom", "Ann", "Sam", "Mia"), start=3)
]
LAX = {"mode": Mode.FLY, "preset": "official", "threshold": 0.0, "window": 1}


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    async with serving_pair() as (router, _), AsyncClient(router.address) as client:
        yield client


async def send(client: AsyncClient, limit: float | None, logprobs: int | None = None) -> list[Response]:
    way = SpeculationParams(max_logprob_gap=limit, draft_length=DraftLength(max=7), **LAX)  # type: ignore[arg-type]
    return [await client.generate(prompt, 80, SamplingParams(), way, logprobs=logprobs) for prompt in PROMPTS]


def rescued_gaps(responses: list[Response]) -> list[float]:
    tokens = [token for response in responses for token in response.tokens]
    rescued = [token for token in tokens if token.verdict is Verdict.RESCUED]
    return [each.logprobs.choice - each.logprobs.token for each in rescued if each.logprobs is not None]


async def test_no_rescued_token_is_less_likely_than_the_limit(client: AsyncClient) -> None:
    free, limited = [await send(client, limit, logprobs=0) for limit in (None, 0.5)]
    assert max(rescued_gaps(free)) > 0.5 >= max(rescued_gaps(limited), default=0.0)


async def test_the_limit_is_the_same_without_log_probabilities_which_nobody_gets_then(
    client: AsyncClient,
) -> None:
    asked, alone = await send(client, 0.5, logprobs=0), await send(client, 0.5)
    assert [response.text for response in asked] == [response.text for response in alone]
    assert all(token.logprobs is None for response in alone for token in response.tokens)


async def test_a_limit_of_zero_gives_the_targets_own_tokens(client: AsyncClient) -> None:
    limited = await send(client, 0.0)
    way = SpeculationParams(mode=Mode.PLAIN)
    plain = [await client.generate(prompt, 80, speculation=way) for prompt in PROMPTS]
    assert [response.text for response in limited] == [response.text for response in plain]
