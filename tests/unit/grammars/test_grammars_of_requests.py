"""Grammars of requests: their form, their faults, and compiling equal ones once."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flyserve.core.errors import InvalidRequest
from flyserve.core.grammar import Grammar, GrammarKind
from router.config import LimitsConfig
from router.requests.grammars import Grammars
from services.common.grammars.hosted import HostedGrammar
from tests.support.processes import TARGET_MODEL

SCHEMA = GrammarKind.JSON_SCHEMA


def read_tokenizer() -> str:
    return (TARGET_MODEL / "tokenizer.json").read_text(encoding="utf-8")


@pytest.fixture
async def grammars() -> AsyncIterator[Grammars]:
    made = Grammars(read_tokenizer, 640, LimitsConfig(grammar_characters=20_000, grammar_compile_s=5))
    yield made
    await made.close()


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


FAULTS = [
    (SCHEMA, "", "is empty, must be a JSON Schema"),
    (SCHEMA, "{", "is not JSON"),
    (SCHEMA, '{"minimum": NaN}', "is not JSON: expected value at line 1 column 13"),
    (SCHEMA, r'{"const": "\ud800"}', "is not JSON: unexpected end of hex escape"),
    (GrammarKind.CHOICE, r'["\udfff"]', "is not JSON: lone"),
    (SCHEMA, "[]", "must be a JSON Schema: an object, true or false"),
    (SCHEMA, '{"type": "strin"}', "Invalid type: strin"),
    (SCHEMA, '{"not": {"type": "string"}}', r'Unimplemented keys: \["not"\]'),
    (SCHEMA, '{"$ref": "http://localhost/x"}', "not present"),
    (SCHEMA, '{"x-guidance": 1}', "x-guidance, which must be an object"),
    (SCHEMA, nested(65), "nested too deep, at most 64 levels"),
    (SCHEMA, "[" * 15_000, "nested too deep"),
    (GrammarKind.JSON_OBJECT, "{}", "has a text, but json_object takes none"),
    (GrammarKind.REGEX, "", "is empty"),
    (GrammarKind.REGEX, "(a", "unclosed group"),
    (GrammarKind.REGEX, "(?=a)b", "look-ahead"),
    (GrammarKind.CHOICE, "[]", "at least one text"),
    (GrammarKind.CHOICE, '["a", 1]', "choice 1"),
    (GrammarKind.CHOICE, '[""]', "choice 0"),
    (GrammarKind.LARK, "start: foo", 'unknown name: "foo"'),
    (GrammarKind.LARK, 'root ::= "a"', "must be in Lark notation"),
    (GrammarKind.LARK, '{"grammars": []}', "cannot be used as lark"),
    (GrammarKind.REGEX, "a" * 20_001, r"has 20001 characters, at most 20000 \(router.limits.grammar_char"),
]


@pytest.mark.parametrize(("kind", "text", "message"), FAULTS)
async def test_faults_are_reported_on_the_field(
    grammars: Grammars, kind: GrammarKind, text: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as raised:
        await grammars.prepare(Grammar(kind, text))
    assert [violation.field for violation in raised.value.violations] == ["grammar"]
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["{}", "true", nested(30)])
async def test_schemas_within_the_limits_are_accepted(grammars: Grammars, text: str) -> None:
    assert json.loads((await grammars.prepare(Grammar(SCHEMA, text))).form)["grammars"]


async def test_equal_grammars_are_compiled_once(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = list[str]()
    original = HostedGrammar.compile

    def counting(self: Any, form: str) -> Any:
        compiled.append(form)
        return original(self, form)

    monkeypatch.setattr(HostedGrammar, "compile", counting)
    wanted = Grammar(GrammarKind.CHOICE, '["a", "b"]')
    first, *others = await asyncio.gather(*(grammars.prepare(wanted) for _ in range(20)))
    assert set(others) == {first} and len(compiled) == 1
    await grammars.prepare(Grammar(GrammarKind.CHOICE, '["a"]'))
    assert len(compiled) == 2


async def test_a_cancelled_request_does_not_cancel_the_grammar_of_others(grammars: Grammars) -> None:
    wanted = Grammar(SCHEMA, '{"type": "integer"}')
    first = asyncio.create_task(grammars.prepare(wanted))
    second = asyncio.create_task(grammars.prepare(wanted))
    await asyncio.sleep(0)
    first.cancel()
    assert await second
    assert first.cancelled()
