"""Grammars through the whole system with the demo pair: validity, exactness, faults, lost targets."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import psutil
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from flyserve import AsyncClient, Coupling, DraftLength, SamplingParams, SpeculationParams
from flyserve.core.errors import InvalidRequest
from flyserve.core.grammar import Grammar, GrammarKind
from flyserve.core.spans import Span
from flyserve.core.types import FinishReason, Mode
from services.common.host import Host
from tests.contract.grammar_rig import PERSON, Replica, of_regex, of_schema, serving_pair

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "Q: Tom has 3 apples and eats 1. How many are left?\n"
GREEDY = SamplingParams()
HOT = SamplingParams(temperature=1.0, seed=11)
PLAIN = SpeculationParams(mode=Mode.PLAIN)
VOCAB_SIZE = 640


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[Host]:
    async with serving_pair(http_port=0, model_name="demo") as (router, _):
        yield router


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(pair: Host) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(pair.address) as client:
        yield client


def format_of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def fly(most: int, preset: str = "") -> SpeculationParams:
    return SpeculationParams(mode=Mode.FLY, preset=preset, draft_length=DraftLength(max=most))


def check_person(text: str) -> None:
    jsonschema.validate(json.loads(text), PERSON)


async def test_every_response_keeps_to_its_schema(client: AsyncClient) -> None:
    for sampling in (GREEDY, HOT):
        for speculation in (PLAIN, fly(1), fly(15), fly(15, "official")):
            response = await client.generate(
                PROMPT, 200, sampling, speculation, grammar=of_schema(PERSON), n=4 if sampling is HOT else 1
            )
            for choice in response.choices:
                assert choice.finish_reason is FinishReason.STOP_TOKEN
                check_person(choice.text)


@pytest.mark.parametrize("sampling", [GREEDY, HOT])
async def test_exact_equals_plain_under_the_same_grammar(
    client: AsyncClient, sampling: SamplingParams
) -> None:
    for grammar in (of_schema(PERSON), of_regex("[a-d ]{5,40}!")):
        plain = await client.generate(PROMPT, 120, sampling, PLAIN, grammar=grammar, n=2)
        for most in (1, 15):
            exact = SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=most))
            drafted = await client.generate(PROMPT, 120, sampling, exact, grammar=grammar, n=2)
            for one, other in zip(plain.choices, drafted.choices, strict=True):
                assert [token.id for token in one.tokens] == [token.id for token in other.tokens]


async def test_structured_text_is_decoded_exactly_where_that_is_asked_for(client: AsyncClient) -> None:
    plain = await client.generate(PROMPT, 120, GREEDY, PLAIN, grammar=of_schema(PERSON))
    strict = SpeculationParams(mode=Mode.FLY, preset="official", exact_in=(Span.STRUCTURED,))
    drafted = await client.generate(PROMPT, 120, GREEDY, strict, grammar=of_schema(PERSON))
    assert drafted.text == plain.text and drafted.statistics.draft_rounds and not drafted.statistics.rescued


async def test_a_grammar_may_begin_after_other_text_within_a_draft(client: AsyncClient) -> None:
    before = 'before: PAUSE "!"\nPAUSE: /[a-z ]{3,9}/\n'
    grammar = replace(of_schema(PERSON), before=before)
    plain = await client.generate(PROMPT, 160, GREEDY, PLAIN, grammar=grammar)
    exact = SpeculationParams(mode=Mode.EXACT)
    for speculation in (exact, *(fly(most) for most in (2, 15))):
        response = await client.generate(PROMPT, 160, GREEDY, speculation, grammar=grammar)
        pause, _, answer = response.text.partition("!")
        assert 3 <= len(pause) <= 9
        check_person(answer)
        if speculation is exact:
            assert response.text == plain.text


async def test_the_drafters_own_model_keeps_to_a_grammar(client: AsyncClient) -> None:
    draft = SpeculationParams(mode=Mode.DRAFT)
    response = await client.generate(PROMPT, 200, HOT, draft, grammar=of_schema(PERSON), n=3)
    for choice in response.choices:
        check_person(choice.text)


KINDS = [
    (Grammar(GrammarKind.CHOICE, '["yes", "no", "maybe\\n"]'), r"yes|no|maybe\n"),
    (of_regex(r"\d{3}-[a-f]{2,4}"), r"\d{3}-[a-f]{2,4}"),
    (Grammar(GrammarKind.LARK, 'start: "(" inner ")"\ninner: /[a-z]{1,3}/ | start'), r"\(+[a-z]{1,3}\)+"),
]


@pytest.mark.parametrize(("grammar", "pattern"), KINDS)
async def test_each_kind_of_grammar(client: AsyncClient, grammar: Grammar, pattern: str) -> None:
    response = await client.generate(PROMPT, 60, HOT, grammar=grammar)
    assert re.fullmatch(pattern, response.choices[0].text)


async def test_a_json_object_is_cut_only_by_its_length(client: AsyncClient) -> None:
    response = await client.generate(PROMPT, 12, grammar=Grammar(GrammarKind.JSON_OBJECT))
    assert response.choices[0].text.startswith("{")
    assert response.choices[0].finish_reason is FinishReason.LENGTH


async def test_an_added_stop_token_ends_only_a_whole_response(client: AsyncClient) -> None:
    (stop,) = {token.id for token in await client.tokenize("a")}
    sampling = SamplingParams(stop_token_ids=(stop,))
    response = await client.generate(PROMPT, 60, sampling, grammar=of_regex("[bc]{4}"))
    assert re.fullmatch("[bc]{4}", response.choices[0].text)
    assert response.choices[0].tokens[-1].id in (0, stop)


SUM = of_regex(r"[0-9]{1,4}(, [0-9]{1,3}){2,6}\.")
EXACT = SpeculationParams(mode=Mode.EXACT)
DRAFT = SpeculationParams(mode=Mode.DRAFT)


@pytest.mark.parametrize("sampling", [GREEDY, HOT])
@pytest.mark.parametrize("stop", [",", "."])
async def test_a_stop_token_that_a_grammar_needs_ends_the_response_and_is_no_text(
    client: AsyncClient, caplog: pytest.LogCaptureFixture, stop: str, sampling: SamplingParams
) -> None:
    (number,) = {token.id for token in await client.tokenize(stop)}
    sampling = replace(sampling, stop_token_ids=(number,))
    answers = [
        (await client.generate(PROMPT, 60, sampling, mode, grammar=SUM)).choices[0]
        for mode in (PLAIN, EXACT, DRAFT)
    ]
    for answer in answers:
        assert answer.finish_reason is FinishReason.STOP_TOKEN and answer.tokens[-1].id == number
        assert re.fullmatch("[0-9]{1,4}" if stop == "," else r"[0-9]{1,4}(, [0-9]{1,3}){2,6}", answer.text)
    assert [token.id for token in answers[0].tokens] == [token.id for token in answers[1].tokens]
    assert_no_replica_is_blamed(caplog)


@pytest.mark.parametrize("mode", [PLAIN, EXACT, DRAFT])
async def test_a_request_that_excludes_every_token_is_at_fault_itself(
    client: AsyncClient, caplog: pytest.LogCaptureFixture, mode: SpeculationParams
) -> None:
    every = SamplingParams(min_tokens=9, stop_token_ids=tuple(range(VOCAB_SIZE)))
    with pytest.raises(
        InvalidRequest, match=r"min_tokens leaves no token to choose at position \d+"
    ) as raised:
        await client.generate(PROMPT, 20, every, mode)
    assert [violation.field for violation in raised.value.violations] == ["sampling.min_tokens"]
    assert_no_replica_is_blamed(caplog)


@pytest.mark.parametrize("mode", [PLAIN, EXACT, fly(15), DRAFT])
async def test_a_grammar_decides_where_min_tokens_delays_the_end(
    client: AsyncClient, mode: SpeculationParams
) -> None:
    late = replace(HOT, min_tokens=30)
    long = await client.generate(PROMPT, 60, late, mode, grammar=of_regex("[a-d ]{2,200}"))
    assert len(long.choices[0].tokens) > 30 and "min_tokens" not in str(long.warnings)
    for grammar, text in ((of_regex("ab"), "ab"), (Grammar(GrammarKind.CHOICE, '["abc"]'), "abc")):
        short = await client.generate(PROMPT, 60, late, mode, grammar=grammar)
        assert (short.text, short.choices[0].finish_reason) == (text, FinishReason.STOP_TOKEN)
        assert [each for each in short.warnings if each.startswith("sampling.min_tokens is 30, but the")]


def assert_no_replica_is_blamed(caplog: pytest.LogCaptureFixture) -> None:
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("sampling", [GREEDY, HOT])
async def test_what_a_bias_or_the_grammar_excludes_is_not_drafted_from_a_prediction(
    client: AsyncClient, sampling: SamplingParams
) -> None:
    grammar = of_schema({"enum": ["red, or green", "blue"]})
    whole = await client.generate(PROMPT, 60, sampling, PLAIN, grammar=grammar)
    wrong = await client.generate(PROMPT, 60, sampling, EXACT, grammar=grammar, prediction='"yellow"')
    assert [token.id for token in wrong.choices[0].tokens] == [token.id for token in whole.choices[0].tokens]
    assert wrong.choices[0].statistics.predicted <= 1, "the grammar allows no more of the prediction"
    free = await client.generate(PROMPT, 30, sampling, PLAIN)
    biased = replace(sampling, logit_bias={token.id: -100.0 for token in free.choices[0].tokens})
    found = await client.generate(PROMPT, 30, biased, EXACT, prediction=free.text)
    right = await client.generate(PROMPT, 30, biased, PLAIN)
    assert [token.id for token in found.choices[0].tokens] == [token.id for token in right.choices[0].tokens]
    assert found.choices[0].statistics.predicted == 0


HTTP: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}, "max_tokens": 2}, r"\{.*"),
    ({"response_format": {"type": "text"}, "structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"response_format": format_of({"enum": ["red", "blue"]})}, '"red"|"blue"'),
    ({"structured_outputs": {"json": '{"const": 12}'}}, "12"),
    ({"structured_outputs": {"json": {"const": None}}}, "null"),
    ({"structured_outputs": {"regex": "c{4}"}}, "cccc"),
    ({"structured_outputs": {"grammar": "start: /z+/"}, "max_tokens": 3}, "z+"),
    ({"structured_outputs": {"json_object": True}, "max_tokens": 2}, r"\{.*"),
]


async def test_the_http_api_takes_the_names_of_openai_and_of_vllm(pair: Host) -> None:
    async with AsyncOpenAI(base_url=f"{pair.addresses[1]}/v1", api_key="none", max_retries=0) as client:
        for fields, pattern in HTTP:
            fields = {"max_tokens": 30, **fields}
            response = await client.completions.create(model="demo", prompt=PROMPT, extra_body=fields)
            assert re.fullmatch(pattern, response.choices[0].text, re.DOTALL), fields


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"grammar": of_regex("(")}, "grammar"),
    ({"grammar": of_schema({"type": "text"})}, "grammar"),
    ({"grammar": of_regex("x"), "sampling": SamplingParams(ignore_eos=True)}, "sampling.ignore_eos"),
]


@pytest.mark.parametrize(("fields", "field"), FAULTS)
async def test_faults_have_the_name_of_their_field(
    client: AsyncClient, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await client.generate(PROMPT, 20, **fields)
    assert [violation.field for violation in raised.value.violations] == [field]


async def test_a_grammar_that_exceeds_its_limits_later_is_the_fault_of_the_request(
    client: AsyncClient,
) -> None:
    growing = client.generate(PROMPT, 2000, grammar=of_regex("(a{1,5000}){300,5000}b"))
    with pytest.raises(InvalidRequest, match="grammar"):
        await growing
    response = await client.generate(PROMPT, 20, grammar=of_regex("ab"))
    assert response.choices[0].text == "ab"


async def test_a_switched_off_guard_has_no_effect(client: AsyncClient) -> None:
    lax = SpeculationParams(mode=Mode.FLY, threshold=0.0, guard_excluded=False)
    response = await client.generate(PROMPT, 200, HOT, lax, grammar=of_schema(PERSON))
    check_person(response.choices[0].text)
    assert any("speculation.guard_excluded has no effect" in warning for warning in response.warnings)


async def test_a_target_lost_within_a_response_is_replaced() -> None:
    async with serving_pair(num_targets=3) as (router, targets), AsyncClient(router.address) as client:
        for sampling in (GREEDY, HOT):
            whole = await client.generate(PROMPT, 200, sampling, PLAIN, grammar=of_schema(PERSON))
            exact = SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=2))
            text, losing = "", True
            async with client.stream(PROMPT, 200, sampling, exact, grammar=of_schema(PERSON)) as stream:
                async for chunk in stream:
                    text += chunk.text
                    if losing and len(text) > 10:
                        losing = False
                        await lose_busy(targets)
                response = stream.response
            assert response.choices[0].statistics.replays >= 1
            assert text == whole.choices[0].text


async def lose_busy(targets: Sequence[Replica]) -> None:
    """Stop the target that has the sequence, without a word to its client."""
    for target in targets:
        if target.engine.load().sequences:
            await target.host.drain(grace_s=0.0)
            return
    raise AssertionError("no target has a sequence")


def processes_of_grammars() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "grammars.process" in " ".join(child.cmdline())]


@pytest.mark.parametrize("mode", [Mode.EXACT, Mode.DRAFT])
@pytest.mark.parametrize("kills_all", [True, False], ids=["host", "grammar"])
async def test_a_process_lost_within_a_response_is_replaced(
    client: AsyncClient, mode: Mode, kills_all: bool
) -> None:
    speculation = SpeculationParams(mode=mode, draft_length=DraftLength(max=2))
    grammar = of_schema({"type": "array", "items": {"type": "integer"}, "minItems": 100})
    whole = await client.generate(PROMPT, 200, HOT, speculation, grammar=grammar)
    text, killed = "", 0
    async with client.stream(PROMPT, 200, HOT, speculation, grammar=grammar) as stream:
        async for chunk in stream:
            text += chunk.text
            if not killed and len(text) > 10:
                for host in processes_of_grammars():
                    for process in [host] if kills_all else host.children():
                        process.kill()
                        killed += 1
    assert text == whole.choices[0].text and killed


FIXED = "The answer to this question is exactly forty-two, as everybody knows."


@pytest.mark.parametrize("has_drafter", [True, False])
async def test_forced_text_is_drafted_without_a_drafter(client: AsyncClient, has_drafter: bool) -> None:
    if has_drafter:
        await check_forced(client)
        return
    async with serving_pair(has_drafter=False) as (router, _), AsyncClient(router.address) as alone:
        await check_forced(alone)


async def check_forced(client: AsyncClient) -> None:
    grammar = Grammar(GrammarKind.CHOICE, json.dumps([FIXED]))
    exact = SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=15))
    for sampling in (GREEDY, HOT, replace(HOT, coupling=Coupling.REJECTION)):
        plain = await client.generate(PROMPT, 120, sampling, PLAIN, grammar=grammar)
        drafted = await client.generate(PROMPT, 120, sampling, exact, grammar=grammar)
        assert plain.choices[0].text == drafted.choices[0].text == FIXED
        statistics = drafted.choices[0].statistics
        assert 0 < statistics.forced_accepted <= statistics.forced <= statistics.drafted
        assert plain.choices[0].statistics.forced == 0
        if sampling.coupling is not Coupling.REJECTION:
            tokens = [[token.id for token in each.choices[0].tokens] for each in (plain, drafted)]
            assert tokens[0] == tokens[1]


ENDLESS = [
    Grammar(GrammarKind.CHOICE, json.dumps([FIXED * 200])),
    of_regex("a{20000}"),
    Grammar(GrammarKind.LARK, "start: /a{20000}/"),
    of_schema({"const": FIXED * 200}),
]


@pytest.mark.parametrize("grammar", ENDLESS, ids=["choice", "regex", "lark", "schema"])
async def test_a_long_forced_text_is_not_spelled_on_the_event_loop(
    client: AsyncClient, grammar: Grammar
) -> None:
    exact = SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=7))
    response = await client.generate(PROMPT, 40, GREEDY, exact, grammar=grammar)
    assert len(response.choices[0].tokens) == 40 and not response.choices[0].statistics.forced
