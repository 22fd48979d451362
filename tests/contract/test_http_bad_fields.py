"""Rejected fields of HTTP requests: each error names its field, and says what is allowed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.http_rig import MODEL, HttpRig, error_of, serving_http

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving_http(tmp_path_factory.mktemp("model"), limits={"prompts": 3, "priority": 100}) as rig:
        yield rig


def of_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the response format of a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def outputs(**fields: Any) -> dict[str, Any]:
    """Return a grammar in vLLM's form."""
    return {"structured_outputs": fields}


UNSUPPORTED, UNKNOWN = "unsupported_parameter", "unknown_parameter"
INVALID, TYPE, MISSING = "invalid_value", "invalid_type", "missing_required_parameter"
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "[1]"}}
ASKED = {"role": "assistant", "content": None}


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


TOOL, LONG = named("add"), named("add", description="x" * 200_000)
BAD_COMPLETIONS: list[tuple[str, str, dict[str, Any], str]] = [
    ("max_tokens", INVALID, {"max_tokens": 0}, "is 0, must be at least 1; only with echo it may be 0"),
    ("max_tokens", TYPE, {"max_tokens": "5"}, "is '5', must be an integer"),
    ("max_tokens", TYPE, {"max_tokens": True}, "is True"),
    ("temperature", TYPE, {"temperature": "hot"}, "is 'hot', must be a number"),
    ("temperature", INVALID, {"temperature": -1}, "must be finite and at least 0"),
    ("temperatur", UNKNOWN, {"temperatur": 1}, "is unknown, did you mean temperature?"),
    ("top_p", INVALID, {"top_p": 1.5}, "is 1.5, must be 0 to 1"),
    ("top_k", INVALID, {"top_k": -2}, "is -2"),
    ("n", INVALID, {"n": 17}, "is 17, must be 1 to 16"),
    ("n", INVALID, {"n": -(10**30)}, "is -1000000000"),
    ("logprobs", INVALID, {"logprobs": 21}, "is 21, must be 0 to 20"),
    ("seed", INVALID, {"seed": 2**64}, "is 18446744073709551616"),
    ("stop", INVALID, {"stop": [1]}, "must be a text or a list of texts"),
    ("stop", INVALID, {"stop": ["x"] * 17}, "has 17 strings, at most 16"),
    ("stop[0]", INVALID, {"stop": [""]}, "has 0 characters, must be 1 to 256"),
    ("stop_token_ids[0]", INVALID, {"stop_token_ids": [304]}, "must be 0 to 303"),
    ("logit_bias", INVALID, {"logit_bias": {"fox": 1}}, "names 'fox', must have token ids as names"),
    ("logit_bias", INVALID, {"logit_bias": {"304": 1}}, "names token 304"),
    ("logit_bias", INVALID, {"logit_bias": {"0" * 5000: 1}}, f"names '{'0' * 20}', must have token ids"),
    ("logit_bias", INVALID, {"logit_bias": {"3": 101}}, "must be -100.0 to 100.0"),
    (
        "min_tokens",
        INVALID,
        {"min_tokens": 5, "max_tokens": 4},
        "is 5, must be at most 4, the number of new tokens",
    ),
    ("coupling", INVALID, {"coupling": "none"}, "is 'none', must be 'shared_noise' or 'rejection'"),
    ("cache_salt", INVALID, {"cache_salt": "x" * 257}, "has 257 characters, at most 256"),
    ("prompt", MISSING, {"prompt": None}, ""),
    ("prompt", INVALID, {"prompt": ""}, "is empty, must have at least one token"),
    ("prompt", INVALID, {"prompt": []}, "must be a text, a list of token ids"),
    ("prompt", INVALID, {"prompt": ["a", [1]]}, "must be a text, a list of token ids"),
    ("prompt", INVALID, {"prompt": [-1]}, "must be a text, a list of token ids"),
    ("prompt", INVALID, {"prompt": ["a"] * 4}, "has 4 prompts, at most 3"),
    ("prompt[1]", INVALID, {"prompt": [3, 304]}, "is 304, must be 0 to 303"),
    ("prompt", "context_length_exceeded", {"prompt": [5] * 512}, "has 512 tokens, at most 511 leave room"),
    (
        "prompt",
        "context_length_exceeded",
        {"prompt": [5] * 512},
        "this model's maximum context length is 512 tokens",
    ),
    ("prompt", "context_length_exceeded", {"prompt": "a " * 500_001}, "1000002 characters, at most 1000000"),
    ("stream_options", INVALID, {"stream_options": {"include_usage": True}}, "without stream"),
    ("stream_options.usage", UNKNOWN, {"stream": True, "stream_options": {"usage": 1}}, "is unknown"),
    ("speculation", TYPE, {"speculation": "fly"}, "is 'fly'"),
    ("speculation.windw", UNKNOWN, {"speculation": {"windw": 3}}, "did you mean window?"),
    ("speculation.mode", INVALID, {"speculation": {"mode": "fast"}}, "must be 'plain', 'exact' or 'fly'"),
    ("speculation.preset", INVALID, {"speculation": {"preset": "vlm"}}, "vllm"),
    ("speculation.window", INVALID, {"speculation": {"window": 0}}, "must be 1 to 64"),
    ("speculation.draft_length.max", INVALID, {"speculation": {"draft_length": 65}}, "must be 0 to 64"),
    (
        "speculation.draft_length.policy",
        UNKNOWN,
        {"speculation": {"draft_length": {"policy": "fixed"}}},
        "is not supported: all drafts have draft_length.max tokens",
    ),
    ("echo", TYPE, {"echo": "yes"}, "is 'yes'"),
    ("max_tokens", INVALID, {"echo": True, "logprobs": 1, "max_tokens": -1}, "is -1, must be 0 to 131072"),
    ("logprobs", INVALID, {"echo": True, "logprobs": 21, "max_tokens": 0}, "is 21, must be 0 to 20"),
    ("best_of", UNSUPPORTED, {"best_of": 4}, "best_of is 4, is not supported here: use n"),
    ("priority", INVALID, {"priority": -(2**31)}, "is -2147483648, must be at least -2147"),
    ("priority", INVALID, {"priority": 101}, "is 101, must be -100 to 100 (router.limits.priority)"),
    ("priority", TYPE, {"priority": 1.5}, "is 1.5"),
    ("service_tier", INVALID, {"service_tier": "slow"}, "is 'slow', must be 'auto', 'default', 'flex'"),
    ("service_tier", INVALID, {"service_tier": "flex", "priority": 3}, "but priority is 3: give one of them"),
    ("suffix", UNSUPPORTED, {"suffix": "."}, "is not supported"),
    ("structured_outputs.json", INVALID, outputs(json={"type": "text"}), "Invalid type: text"),
    ("structured_outputs.json", INVALID, outputs(json="{"), "is not JSON"),
    ("structured_outputs.json", INVALID, outputs(json=r'{"const": "\ud800"}'), "is not JSON"),
    ("structured_outputs.json", INVALID, outputs(json=5), "must be a JSON Schema"),
    ("structured_outputs.regex", INVALID, outputs(json="{}", regex="a"), "set with structured_outputs.json"),
    ("structured_outputs.grammar", INVALID, outputs(grammar='root ::= "a"'), "Lark"),
    ("structured_outputs.choice", INVALID, outputs(choice=[]), "at least one text"),
    ("structured_outputs.choice", TYPE, outputs(choice="a"), "is 'a'"),
    ("structured_outputs.regex", INVALID, outputs(regex="("), "unclosed group"),
    ("structured_outputs.jsn", UNKNOWN, outputs(jsn={}), "did you mean json?"),
    ("guided_json", UNSUPPORTED, {"guided_json": {"type": "object"}}, "use response_format or structured_"),
    ("guided_regex", UNSUPPORTED, {"guided_regex": "a"}, "not supported here: use structured_outputs.regex"),
    ("guided_choice", UNSUPPORTED, {"guided_choice": ["a"]}, "use structured_outputs.choice"),
    ("guided_grammar", UNSUPPORTED, {"guided_grammar": "x"}, "use structured_outputs.grammar"),
    ("ignore_eos", INVALID, {**outputs(regex="a"), "ignore_eos": True}, "must be false with a grammar"),
]
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
BAD_CHATS: list[tuple[str, str, dict[str, Any], str]] = [
    ("messages", INVALID, {"messages": []}, "is [], must have at least one item"),
    ("messages", TYPE, {"messages": "hello"}, "is 'hello', must be a list"),
    ("messages[0].content", MISSING, {"messages": [{"role": "user"}]}, "is missing"),
    (
        "messages[0].role",
        INVALID,
        {"messages": [{"role": "me", "content": "x"}]},
        "is 'me', must be 'system'",
    ),
    ("messages[0].content", UNSUPPORTED, {"messages": [{"role": "user", "content": [IMAGE]}]}, "image_url"),
    ("messages[0].content", INVALID, {"messages": [{"role": "user", "content": [7]}]}, "must be a text"),
    ("messages[0].content", INVALID, {"messages": [{"role": "user", "content": IMAGE}]}, "must be a text"),
    (
        "messages[0].content",
        INVALID,
        {"messages": [{"role": "user", "content": [{"type": {}, "text": ""}]}]},
        "must be",
    ),
    ("messages[0]", INVALID, {"messages": [{"role": "tool", "content": "x"}]}, "no tool_call_id"),
    ("messages[0]", INVALID, {"messages": [{**HELLO[0], "tool_calls": [CALL]}]}, "only role assistant may"),
    ("messages[0].function_call.name", MISSING, {"messages": [{**HELLO[0], "function_call": {"a": 1}}]}, ""),
    ("messages[0].tool_calls[0].id", MISSING, {"messages": [{**ASKED, "tool_calls": [{}]}]}, "missing"),
    ("messages", INVALID, {"messages": [{"role": "assistant", "content": "x"}]}, "last message must be"),
    (
        "messages",
        "context_length_exceeded",
        {"messages": [{**HELLO[0], "content": "a " * 500_001}]},
        "1000002 characters",
    ),
    (
        "messages",
        "context_length_exceeded",
        {"messages": [{**HELLO[0], "content": "a" * 600}]},
        "this model's maximum context length is 512 tokens",
    ),
    ("max_completion_tokens", INVALID, {"max_completion_tokens": 131_073}, "must be 0 to 131072"),
    ("max_tokens", INVALID, {"max_tokens": 3, "max_completion_tokens": 4}, "give one of them"),
    ("top_logprobs", INVALID, {"logprobs": True, "top_logprobs": 21}, "must be 0 to 20"),
    ("top_logprobs", INVALID, {"top_logprobs": 2}, "without logprobs"),
    ("logprobs", TYPE, {"logprobs": 1}, "is 1"),
    ("echo", UNSUPPORTED, {"echo": True}, "echo is not supported, only false is"),
    ("tools[0].function", MISSING, {"tools": [{"type": "function"}]}, "is missing"),
    ("tools", INVALID, {"tools": [TOOL]}, "are not rendered by the model's chat template"),
    ("tools", INVALID, {"tools": [TOOL] * 129}, "has 129 tools, at most 128 are allowed"),
    ("tools", INVALID, {"tools": [LONG]}, "at most 200000 are allowed (router.limits.tool_characters)"),
    ("tools[0].function.name", INVALID, {"tools": [named("a b")]}, "is 'a b', must have 1 to 64 letters"),
    ("tools[1].function.name", INVALID, {"tools": [TOOL, TOOL]}, "is 'add', which an earlier tool has"),
    ("tool_choice", INVALID, {"tool_choice": "required"}, "the request has no tools"),
    ("tool_choice", INVALID, {"tool_choice": "any"}, 'must be "none", "auto", "required" or'),
    ("tool_choice", INVALID, {"tools": [TOOL], "tool_choice": named("sub")}, "names 'sub', which is none"),
    ("functions[0].name", MISSING, {"functions": [{}]}, "is missing"),
    ("functions", INVALID, {"functions": [{"name": "f"}]}, "are not rendered by the model's chat template"),
    (
        "response_format.type",
        INVALID,
        {"response_format": {"type": "xml"}},
        "is 'xml', must be 'text'",
    ),
    (
        "response_format.json_schema",
        INVALID,
        {"response_format": {**of_schema({}), "type": "text"}},
        "must not be set with type text",
    ),
    ("response_format.json_schema", MISSING, {"response_format": {"type": "json_schema"}}, ""),
    ("response_format", INVALID, {"response_format": of_schema({"type": "text"})}, "Invalid type: text"),
    ("modalities", UNSUPPORTED, {"modalities": ["text", "audio"]}, "modalities is not supported"),
    ("chat_template", UNSUPPORTED, {"chat_template": "{{ 1 }}"}, "chat_template is not supported"),
    (
        "chat_template_kwargs.tokenize",
        INVALID,
        {"chat_template_kwargs": {"tokenize": False}},
        "must not be set",
    ),
    ("chat_template_kwargs.messages", INVALID, {"chat_template_kwargs": {"messages": []}}, "must not be set"),
]


async def test_every_bad_field_is_named_and_the_server_goes_on(rig: HttpRig) -> None:
    before = await rig.complete(temperature=0, max_tokens=9)
    tables = ((COMPLETIONS, {"prompt": "hello"}, BAD_COMPLETIONS), (CHAT, {"messages": HELLO}, BAD_CHATS))
    for path, least, table in tables:
        for param, code, fields, part in table:
            body = {"model": MODEL, **least, **fields}
            if code == MISSING and fields == {"prompt": None}:
                del body["prompt"]
            response = await rig.post(path, body)
            error = error_of(response)
            found = (response.status_code, error["param"], error["code"], error["type"])
            assert found == (400, param, code, "invalid_request_error"), (fields, error)
            assert part in error["message"], error
    after = await rig.complete(temperature=0, max_tokens=9)
    assert after["choices"] == before["choices"] and not rig.target.num_open
