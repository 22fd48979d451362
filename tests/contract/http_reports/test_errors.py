"""Errors in the client's own words: its fields and indices, and nothing of a library."""

import re
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest
import pytest_asyncio

from router.http.chat import ChatRequest
from router.http.completions import CompletionRequest
from router.http.responses.fields import ResponsesRequest
from tests.contract.http_reports.report_rig import CHAT, COMPLETIONS, RESPONSES, USER, Report, answer
from tests.contract.http_rig import HttpRig, error_of
from tests.contract.test_http_tools import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIBRARY = re.compile(
    r"should|valid(ation|ator)|Input|pydantic|instance of|dictionary|NoneType|Traceback|Error\b|\bexpected\b"
    r"|max_new_tokens|sampling\.|prompt_token_ids|__"
)
"""Words of libraries, and names of fields that are not the client's."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving(tmp_path_factory.mktemp("model"), "ok") as rig:
        yield rig


def items(*given: Any, **more: Any) -> dict[str, Any]:
    return {"input": list(given), **more}


BAD = {"role": "cat", "content": "x"}
CALL = {"type": "function_call", "call_id": "k", "name": "f", "arguments": 5}
REPORTS = [
    Report(
        "", "reasoning alone ends the server", RESPONSES, items({"type": "reasoning"}), "input", "a message"
    ),
    Report(
        "",
        "instructions shift the index of an item",
        RESPONSES,
        items(USER, BAD, instructions="a"),
        "input[1].role",
    ),
    Report(
        "",
        "merged items shift the index",
        RESPONSES,
        items(USER, CALL | {"arguments": "{}"}, CALL),
        "input[2].arguments",
        "must be a text",
    ),
    Report(
        "vllm#49239",
        "an error repeats the whole input",
        RESPONSES,
        items(USER, {"role": "user", "content": 5}),
        "input[1].content",
        "must be a text, or a list of parts",
    ),
    Report(
        "",
        "a limit has an inner name",
        CHAT,
        {"max_tokens": -1},
        "max_tokens",
        "max_tokens is -1, must be at least 1",
    ),
    Report(
        "",
        "a limit has an inner name",
        CHAT,
        {"max_tokens": None, "max_completion_tokens": 200_000},
        "max_completion_tokens",
        "must be 0 to 131072",
    ),
    Report(
        "",
        "a limit has an inner name",
        RESPONSES,
        {"max_output_tokens": 200_000},
        "max_output_tokens",
        "must be 0 to 131072",
    ),
    Report("", "a prompt has an inner name", COMPLETIONS, {"prompt": [1] * 600}, "prompt", "has 600 tokens"),
    Report(
        "",
        "a minimum is blamed as well",
        CHAT,
        {"max_tokens": 3, "min_tokens": 4},
        "min_tokens",
        "must be at most 3",
    ),
    Report("", "no messages", CHAT, {"messages": []}, "messages", "must have at least one item"),
    Report("", "a message that is a text", CHAT, {"messages": ["hi"]}, "messages[0]", "must be an object"),
    Report(
        "",
        "a content that is null",
        CHAT,
        {"messages": [{"role": "user", "content": None}]},
        "messages[0].content",
        "is missing",
    ),
    Report(
        "", "a truth value as text", CHAT, {"stream_options": "yes"}, "stream_options", "must be an object"
    ),
    Report(
        "",
        "an option of a stream alone",
        RESPONSES,
        {"stream_options": {"include_obfuscation": 1}},
        "stream_options.include_obfuscation",
        "must be true or false",
    ),
    Report("", "a tool that is null", CHAT, {"tools": [None]}, "tools[0]", "must be an object"),
    Report(
        "",
        "a reserved name",
        CHAT,
        {"chat_template_kwargs": {"messages": []}},
        "chat_template_kwargs.messages",
        "must not be set",
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=str)
async def test_an_error_names_the_clients_field(rig: HttpRig, report: Report) -> None:
    await answer(rig, report)


PLAIN = {"speculation": {"mode": "plain"}}
"""Without drafts, which may be late on a busy machine, and then get a warning."""
VALUES: list[Any] = [None, True, -1, 0, 10**30, 0.5, "x", "", [], [None], {}, {"a": 1}, [[1]], {"type": "x"}]
MODELS: dict[str, Any] = {CHAT: ChatRequest, COMPLETIONS: CompletionRequest, RESPONSES: ResponsesRequest}


async def test_no_error_has_the_words_of_a_library(rig: HttpRig) -> None:
    for path, model in MODELS.items():
        for name, value in product((*model.model_fields, "functions", "misspelled"), VALUES):
            response = await rig.post(path, {**Report("", "", path).body, name: value})
            assert response.status_code in (200, 400, 404), response.text
            if response.status_code == 400:
                message = re.sub(r"\(router\.[\w.]+\)", "", error_of(response)["message"])
                assert not LIBRARY.search(message), f"{path} {name}={value!r}: {message}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a": }', "the body is not JSON: it is invalid at line 1 column 7"),
        (b"", "the body is not JSON: it is invalid"),
        (b"\xff", "the body is not UTF-8: byte 0 is invalid"),
        (b"[]", "the body must be a JSON object, found an array"),
    ],
)
async def test_a_body_that_is_no_json_has_its_place(rig: HttpRig, body: bytes, words: str) -> None:
    message = error_of(await rig.post(CHAT, body))["message"]
    assert message.startswith(words) and not LIBRARY.search(message)


async def test_an_error_is_short_whatever_the_input(rig: HttpRig) -> None:
    """vllm#49239: an error repeats the input once for each fault."""
    for path, name in ((CHAT, "messages"), (RESPONSES, "input")):
        body = {name: [{"role": "user", "content": {"x": "y" * 500}}] * 4000}
        response = await rig.post(path, body)
        assert response.status_code == 400 and len(response.content) < 16_384


async def test_a_warning_has_the_clients_names(rig: HttpRig) -> None:
    body = {
        "messages": [USER],
        "max_tokens": 1000,
        "temperature": 0,
        "top_k": 3,
        "coupling": "rejection",
        **PLAIN,
    }
    for more in ({}, {"verdicts": True}):
        found = (await rig.post(CHAT, {**body, **more})).json()
        assert any(each.startswith("max_tokens was cut from 1000 to ") for each in found["warnings"])
        assert "top_k, coupling have no effect at temperature 0" in found["warnings"]
    assert found["choices"][0]["flyserve"]["warnings"] == found["warnings"]
    silent = (await rig.post(CHAT, {"messages": [USER], "max_tokens": 3, "temperature": 0, **PLAIN})).json()
    assert "warnings" not in silent
