"""Grammars made to be expensive, from many clients at once: each harms itself alone."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from flyserve import AsyncClient, Response
from flyserve.core.errors import FlyServeError, InvalidRequest
from flyserve.core.grammar import Grammar, GrammarKind
from flyserve.core.types import FinishReason
from tests.contract.grammar_rig import of_lark, of_regex, of_schema, serving_pair
from tests.support.loop_monitor import assert_short_pieces

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLIENTS = 32
PROMPT = "Q: Tom has 3 apples and eats 1. How many are left?\n"


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}, "required": ["a"]}
    return schema


HOSTILE = {
    "deep": of_schema(nested(12)),
    "wide": of_schema({"enum": [f"{number:0200d}" for number in range(900)]}),
    "counted": of_schema({"type": "string", "maxLength": 10_000_000}),
    "nested counts": of_regex("((a{1,300}){1,300}){1,300}"),
    "many ways": of_regex("(a|aa|aaa|aaaa)*b" * 200),
    "large forced text": of_regex("a{200000}"),
    "ambiguous": of_lark('start: e\ne: e e | e "+" e | e e e | /[ab]/'),
    "endless choice": Grammar(GrammarKind.CHOICE, json.dumps(["a" * 200_000, "a" * 200_001])),
    "recursive": of_schema({"$ref": "#/$defs/t", "$defs": {"t": {"anyOf": [{"$ref": "#/$defs/t"}]}}}),
    "empty": of_regex("[^\\x00-\\U0010ffff]"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[AsyncClient]:
    async with serving_pair() as (router, _), AsyncClient(router.address) as client:
        yield client


async def send(client: AsyncClient, grammar: Grammar) -> Response | FlyServeError:
    try:
        return await client.generate(PROMPT, 12, grammar=grammar)
    except FlyServeError as error:
        return error


async def test_a_crowd_of_hostile_grammars_changes_nothing_for_others(client: AsyncClient) -> None:
    alone = await client.generate(PROMPT, 100)
    grammars = (list(HOSTILE.values()) * CLIENTS)[:CLIENTS]

    async def crowd(_: int) -> None:
        answers = asyncio.gather(*(send(client, grammar) for grammar in grammars))
        beside = [await client.generate(PROMPT, 100) for _ in range(3)]
        assert [response.text for response in beside] == [alone.text] * 3
        for answer in await answers:
            if isinstance(answer, FlyServeError):
                assert isinstance(answer, InvalidRequest) and "grammar" in str(answer)
            else:
                assert answer.finish_reason in (FinishReason.LENGTH, FinishReason.STOP_TOKEN)

    await assert_short_pieces(crowd)
