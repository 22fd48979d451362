"""Parts of a message in public reports: where stop strings count, what ends a call, and what is counted."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.contract.http_reports.message_rig import (
    MARKERS,
    PLAIN,
    Answer,
    chat,
    flat,
    respond,
    serving_copier,
    tool,
)
from tests.contract.http_rig import MODEL, HttpRig

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '<tool_call>\n{"name": "w", "arguments": {"a": "Observation: b"}}\n</tool_call>'
WHOLE = ("w", '{"a": "Observation: b"}')
CUT = CALL[: CALL.index("ation")]
OTHER = '<tool_call>\n{"name": "w", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nFirst. Question: 7 books\n\nObservation: none</think>\n\n"
TOOLS = {"tools": [tool({"type": "object"})]}
STOPS = ["Question:", "\n\n", "Observation:"]


class Case(NamedTuple):
    """A public report, or a sibling of it: the text that the model writes, the request, the right answer."""

    thread: str
    symptom: str
    text: str
    fields: dict[str, Any]
    content: str
    calls: list[tuple[str, str]]
    reason: str


CASES = [
    Case(
        "vllm#53066",
        "a stop string in the thought leaves no answer",
        f"{THOUGHT}It is 7.",
        {"stop": ["books"]},
        "It is 7.",
        [],
        "stop",
    ),
    Case(
        "lm-eval",
        "stop strings that every evaluation sends end the thought",
        f"{THOUGHT}7\n\nQuestion: next",
        {"stop": STOPS},
        "7",
        [],
        "stop",
    ),
    Case(
        "lm-eval",
        "the empty line after the thought is a stop string",
        f"{THOUGHT}\n\n\n7",
        {"stop": "\n\n"},
        "7",
        [],
        "stop",
    ),
    Case(
        "lm-eval",
        "the limit is reached within the thought",
        f"{THOUGHT}7",
        {"stop": STOPS, "max_tokens": 12},
        "",
        [],
        "length",
    ),
    Case(
        "vllm#53066",
        "the thought is left out of the response",
        f"{THOUGHT}It is 7. Question: x",
        {"stop": STOPS, "include_reasoning": False},
        "It is 7. ",
        [],
        "stop",
    ),
    Case(
        "vllm#53066",
        "a stop string begins in the thought and ends in the answer",
        "<think>\nQuest</think>ion: 7",
        {"stop": ["Question", "tion", "</think>"]},
        "ion: 7",
        [],
        "stop",
    ),
    Case(
        "vllm#58228",
        "a stop string cuts the arguments of a call",
        CALL,
        TOOLS | {"stop": STOPS},
        "",
        [WHOLE],
        "tool_calls",
    ),
    Case(
        "vllm#58228",
        "a brace is a stop string",
        CALL,
        TOOLS | {"stop": ["}", '"', "{"]},
        "",
        [WHOLE],
        "tool_calls",
    ),
    Case(
        "vllm#58228", "a line break is a stop string", CALL, TOOLS | {"stop": "\n"}, "", [WHOLE], "tool_calls"
    ),
    Case(
        "vllm#58228",
        "a stop string follows the call",
        f"{CALL}\nObservation: 5",
        TOOLS | {"stop": STOPS},
        "",
        [WHOLE],
        "tool_calls",
    ),
    Case(
        "vllm#58228",
        "a stop string between two calls",
        f"{CALL}\nSo. Question: {OTHER}",
        TOOLS | {"stop": STOPS},
        "So. ",
        [WHOLE],
        "tool_calls",
    ),
    Case(
        "vllm#58228",
        "parallel calls and a line break as stop string",
        f"{CALL}\n{OTHER}",
        TOOLS | {"stop": "\n"},
        "",
        [WHOLE, ("w", "{}")],
        "tool_calls",
    ),
    Case(
        "vllm#58228",
        "a stop string comes before the call",
        f"See. Question: {CALL}",
        TOOLS | {"stop": STOPS},
        "See. ",
        [],
        "stop",
    ),
    Case(
        "vllm#58228",
        "a call in the thought",
        f"<think>\n{OTHER}</think>{CALL}",
        TOOLS | {"stop": "w"},
        "",
        [WHOLE],
        "tool_calls",
    ),
    Case(
        "vllm#53269",
        "a call whose text ends early counts as a call",
        CUT,
        TOOLS,
        "",
        [("w", '{"a": "Observ')],
        "stop",
    ),
    Case(
        "vllm#53269",
        "the second of two calls is cut",
        f"{OTHER}\n{CUT}",
        TOOLS,
        "",
        [("w", "{}"), ("w", '{"a": "Observ')],
        "stop",
    ),
    Case(
        "vllm#9053",
        "the limit is reached within a call",
        CALL,
        TOOLS | {"max_tokens": 50},
        "",
        [("w", "")],
        "length",
    ),
    Case(
        "vllm#53269",
        "arguments that are no JSON count as a call",
        CALL.replace('"Obs', "Obs"),
        TOOLS,
        "",
        [("w", '{"a": Observation: b"}}\n</tool_call>')],
        "stop",
    ),
    Case(
        "vllm#53269",
        "arguments with quotes of another kind",
        OTHER.replace("{}", "{'a': 1}"),
        TOOLS,
        "",
        [("w", "{'a': 1}")],
        "stop",
    ),
    Case(
        "vllm#58228",
        "text that only looks like a call has a stop string",
        f"{OTHER.replace('w', 'unknown')} Question: x",
        TOOLS | {"stop": STOPS},
        OTHER.replace("w", "unknown") + " ",
        [],
        "stop",
    ),
    Case(
        "vllm#21987",
        "a stop string ends the text before min_tokens",
        "a stop b stop c",
        {"stop": "stop", "min_tokens": 10},
        "a stop b ",
        [],
        "stop",
    ),
    Case(
        "vllm#21987",
        "min_tokens counts the thought, too",
        f"{THOUGHT}a stop b",
        {"stop": "stop", "min_tokens": 40},
        "a ",
        [],
        "stop",
    ),
    Case(
        "vllm#22014",
        "a stop string that begins before min_tokens and ends after it",
        "abcdefgh stop",
        {"stop": "h stop", "min_tokens": 9},
        "abcdefg",
        [],
        "stop",
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[(), MARKERS], ids=["spelled", "tokens"])
async def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HttpRig]:
    async with serving_copier(tmp_path_factory.mktemp("model"), request.param) as rig:
        yield rig


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.thread} {case.symptom}")
async def test_each_part_of_a_message_has_its_own_rules(rig: HttpRig, case: Case) -> None:
    messages = [{"role": "user", "content": case.text}]
    asked = {"max_tokens": 300, **case.fields, "speculation": {"mode": "exact"}}
    for answer in await chat(rig.http, model=MODEL, messages=messages, **asked):
        assert (answer.content, answer.reason) == (case.content, case.reason)
        if case.reason == "length" and case.calls:
            (name, arguments), *_ = answer.calls or [("w", "")]
            assert name == "w" and '{"a": "Observation: b"}'.startswith(arguments)
        else:
            assert list(answer.calls) == case.calls
        assert bool(answer.reasoning) == (
            case.text.startswith("<think>") and "include_reasoning" not in asked
        )


async def test_a_response_whose_call_is_cut_says_so_in_its_item(rig: HttpRig) -> None:
    asked = {"model": MODEL, "tools": [flat(TOOLS["tools"][0])], "speculation": {"mode": "exact"}}
    for text, reason in ((CALL, "completed completed"), (CUT, "completed incomplete")):
        for answer in await respond(rig.http, input=text, **asked):
            assert answer.reason == reason and len(answer.calls) == 1


async def test_tokens_of_reasoning_are_counted_alike_in_both_apis(rig: HttpRig) -> None:
    text = f"{THOUGHT}7"
    messages = [{"role": "user", "content": text}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": 300}
    usage = (await rig.post("/v1/chat/completions", asked)).json()["usage"]
    of_response = (await rig.post("/v1/responses", {"model": MODEL, "input": text})).json()["usage"]
    counted = usage["completion_tokens_details"]["reasoning_tokens"]
    assert counted == of_response["output_tokens_details"]["reasoning_tokens"]
    assert 20 < counted < usage["completion_tokens"]


async def test_a_prompt_may_open_the_thought_that_a_stop_string_is_in(rig: HttpRig) -> None:
    text = "7 books. Question:</think>\n\n7 Question: x"
    asked = {"messages": [{"role": "user", "content": text}], "chat_template_kwargs": {"think": True}}
    for answer in await chat(rig.http, model=MODEL, stop=STOPS, max_tokens=300, **asked, **PLAIN):
        assert answer == Answer("7 ", "7 books. Question:", (), "stop")
