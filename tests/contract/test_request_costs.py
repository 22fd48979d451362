"""Bad requests of every API: a small error, little CPU time, and short pieces of work on the event loop.

The largest good ones have short pieces, too.
"""

import json
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import pytest

from flyserve.v1 import common_pb2 as common
from flyserve.v1 import generation_pb2 as pb
from tests.contract.http_rig import MODEL, HttpRig, error_of
from tests.support.loop_monitor import ATTEMPTS, MAX_PIECE_S, assert_short_pieces, longest_piece

MOST_CPU_S, MOST_ANSWER_BYTES, MOST_METADATA_BYTES = 0.5, 16_000, 8_000
COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
TEXT: dict[str, Any] = {"prompt": "x"}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
INPUT: dict[str, Any] = {"input": "x"}
MANY = 100_000


def names(number: int) -> dict[str, int]:
    return {f"tempe{index:06d}": 1 for index in range(number)}


def repeated(item: bytes, number: int, before: bytes, after: bytes = b"]}") -> bytes:
    return before + b",".join([item] * number) + after


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x", **fields}]}


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


def called(number: int, arguments: str) -> dict[str, Any]:
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}] * number}


BIG_VALUES = dict.fromkeys(("temperature", "top_p", "min_p", "seed", "n", "stream", "logprobs"), names(9_000))
BODIES: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, names(200_000), "tempe000000 is unknown; the body has 200002 fields"),
    (COMPLETIONS, {f"temperatur{at}": 1 for at in range(30)}, "did you mean temperature?"),
    (COMPLETIONS, {"t" * 7_000_000: 1}, "is unknown"),
    (COMPLETIONS, {"t" * 200_000 + str(at): 1 for at in range(30)}, "is unknown"),
    (COMPLETIONS, {"stop": [""] * MANY}, "at most 16 are allowed (router.limits.stop_strings)"),
    (COMPLETIONS, {"stop": ["x" * 400_000] * 16}, "has 400000 characters, must be 1 to 256"),
    (COMPLETIONS, {"stop_token_ids": [900] * MANY}, "at most 1024 are allowed (router.limits.listed_tokens)"),
    (COMPLETIONS, {"stop_token_ids": [900] * 1024}, "is 900, must be 0 to 303"),
    (COMPLETIONS, {"logit_bias": dict.fromkeys(map(str, range(MANY)), 1)}, "at most 1024 are allowed"),
    (COMPLETIONS, {"logit_bias": dict.fromkeys(map(str, range(400, 1400)), 1)}, "names token 400"),
    (COMPLETIONS, {"prompt": ["a"] * MANY}, "at most 64 are allowed (router.limits.prompts)"),
    (COMPLETIONS, {"prompt": [[5]] * MANY}, "at most 64 are allowed (router.limits.prompts)"),
    (COMPLETIONS, {"prompt": [5] * 900_000}, "has 900000 tokens"),
    (COMPLETIONS, {"prompt": "the fox " * 120_000}, "leave room for an answer"),
    (COMPLETIONS, {"prompt": ["the fox " * 15_000] * 64, "echo": True, "logprobs": 5}, "leave room"),
    (
        COMPLETIONS,
        {"prompt": ["x"] * 64, "structured_outputs": {"json": {"enum": ["x" * 100] * 60_000}}},
        "grammar_characters",
    ),
    (COMPLETIONS, {"prompt": ["x"] * 64, "n": 16, "logprobs": 20}, "at most 524288 are allowed"),
    (COMPLETIONS, {"prompt": ["x"] * 64, "n": 16, "max_tokens": 4096, "verdicts": True}, "verdicts makes"),
    (COMPLETIONS, {"structured_outputs": {"choice": [1] * 400_000}}, "router.limits.grammar_characters"),
    (COMPLETIONS, {"speculation": {"exact_in": ["x"] * MANY}}, "at most 64 are allowed"),
    (COMPLETIONS, {"speculation": names(MANY)}, "speculation has 100000 fields"),
    (COMPLETIONS, {"temperature": names(MANY)}, "is an object of 100000 fields, must be a number"),
    (COMPLETIONS, BIG_VALUES, "is an object of 9000 fields"),
    (COMPLETIONS, {"temperature": "\n" * 4_000_000}, "must be a number"),
    (COMPLETIONS, {"user": [[]] * 300_000}, "router.http.max_body_values"),
    (COMPLETIONS, {"model": "\x01" * 1_000_000}, "model is"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": ""}] * 30_000},
        "at most 4096 are allowed (router.limits",
    ),
    (CHAT, {"messages": [{"role": "user", "content": ""}] * 200_000}, "router.http.max_body_values"),
    (CHAT, {"messages": [{}] * MANY}, "at most 4096 are allowed (router.limits.items)"),
    (CHAT, {"messages": [{}] * 4096}, "messages[0].role is missing"),
    (CHAT, {"messages": [{"role": "user", "content": "the fox " * 120_000}]}, "leave room for an answer"),
    (CHAT, message(**names(MANY)), "messages[0] has 100002 fields"),
    (CHAT, message(content=[{}] * MANY), "messages[0].content has 100000 parts"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}] * MANY}]}, "has 100000 calls"),
    (
        CHAT,
        {"messages": [{"role": "assistant", "tool_calls": [{}] * 40}] * 4000},
        "tool_calls[0].id is missing",
    ),
    (CHAT, called(1, "[" * 900_000), "the last message must be the user's"),
    (CHAT, called(4000, "[1]"), "the last message must be the user's"),
    (CHAT, {**HELLO, "tools": [{}] * MANY}, "at most 128 are allowed (router.limits.tools)"),
    (CHAT, {**HELLO, **function(**names(MANY))}, "tools[0].function has 100001 fields"),
    (CHAT, {**HELLO, **function(parameters={"enum": [1] * 900_000})}, "router.limits.tool_characters"),
    (CHAT, {**HELLO, "tool_choice": [1] * 900_000}, "tool_choice must be"),
    (CHAT, {**HELLO, "chat_template_kwargs": names(MANY)}, "has 100000 variables, at most 64"),
    (CHAT, {**HELLO, "chat_template_kwargs": {"tail": "the fox " * 900_000}}, "more than 3400000 characters"),
    (
        CHAT,
        {"messages": HELLO["messages"] * 200, "chat_template_kwargs": {"tail": "x" * 50_000}},
        "messages are rendered to more than",
    ),
    (
        CHAT,
        {**HELLO, "response_format": {"type": "text", **names(MANY)}},
        "response_format has 100001 fields",
    ),
    (RESPONSES, {"input": [{}] * MANY}, "at most 4096 are allowed (router.limits.items)"),
    (RESPONSES, {"input": [{"type": "x"}] * 4096}, "input[0] has type x"),
    (RESPONSES, {"input": [{"type": "reasoning", "content": [{}] * MANY}]}, "has 100000 parts"),
    (RESPONSES, {"input": [{"type": "function_call"}] * 4096}, "input[0].call_id is missing"),
    (RESPONSES, {**INPUT, "tools": [{}] * MANY}, "at most 128 are allowed (router.limits.tools)"),
    (RESPONSES, {**INPUT, "metadata": dict.fromkeys(names(MANY), "x")}, "metadata has 100000 entries"),
    (RESPONSES, {**INPUT, "include": ["x"] * MANY}, "include has 100000 items, at most 64"),
    (
        RESPONSES,
        {**INPUT, "text": {"format": {"type": "text", **names(MANY)}}},
        "text.format has 100001 fields",
    ),
    ("/tokenize", {"messages": [{"role": "user", "content": ""}] * 40_000}, "router.limits.items"),
    ("/tokenize", {"prompt": "x", **names(MANY)}, "the body has"),
    ("/detokenize", {"tokens": [-1] * 900_000}, "tokens[0] is -1"),
    ("/detokenize", {"tokens": [999] * 900_000}, "tokens[0] is 999, must be 0 to 303"),
]
RAW: list[tuple[bytes, str]] = [
    (b"[" * 8_000_000, "router.http.max_body_values"),
    (b'"' * 8_000_000, "router.http.max_body_values"),
    (repeated(b"1", 2_000_000, b'{"user":['), "router.http.max_body_values"),
    (b'{"a":' + b"x" * 8_000_000, "is not JSON"),
    (b'{"a":"' + b"\\" * 7_000_000 + b'"}', "a is unknown"),
]


async def test_a_bad_body_costs_little_and_its_answer_is_small(rig: HttpRig) -> None:
    least = {COMPLETIONS: TEXT, CHAT: HELLO, RESPONSES: INPUT}
    cases: list[tuple[str, Any, str]] = [(COMPLETIONS, *case) for case in RAW]
    for path, body, part in [*cases, *BODIES]:
        filled = {"model": MODEL, **least.get(path, {}), **body} if isinstance(body, dict) else body
        content = json.dumps(filled).encode() if isinstance(filled, dict) else filled

        async def send(path: str = path, content: bytes = content, part: str = part) -> None:
            response = await rig.post(path, content)
            error = error_of(response)
            assert response.status_code in (400, 404, 413), error
            assert part in error["message"], (path, part, error["message"][:300])
            assert len(response.content) <= MOST_ANSWER_BYTES

        await assert_cheap(send, part)
    assert len((await rig.complete(max_tokens=3))["choices"]) == 1


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: pb.GenerateRequest(prompt="x", stop=[""] * 1_500_000), "router.limits.stop_strings"),
    (lambda: with_ids([1] * 4_000_000), "router.limits.prompt_characters"),
    (lambda: with_ids([999] * 900_000), "is 999, must be 0 to 303"),
    (lambda: pb.GenerateRequest(prompt="the fox " * 120_000), "leave room for an answer"),
    (lambda: sampled(logit_bias=dict.fromkeys(range(300_000), 1.0)), "router.limits.listed_tokens"),
    (lambda: sampled(stop_token_ids=[900] * 1_000_000), "router.limits.listed_tokens"),
    (lambda: sampled(stop_token_ids=[900] * 1024), "is 900, must be 0 to 303"),
    (lambda: speculating(exact_in=[1] * 3_000_000), "at most 64 are allowed"),
    (lambda: speculating(preset="\u00e4" * 1_900_000), "must be one of"),
    (lambda: resuming([pb.ReceivedChoice()] * 900_000), "router.limits.choices"),
    (lambda: resuming([pb.ReceivedChoice(token_ids=[1] * 3_000_000)]), "router.limits.max_new_tokens"),
    (lambda: resuming([pb.ReceivedChoice(index=7)] * 16), "each index may occur once"),
    (lambda: pb.GenerateRequest(prompt="x", request_id="x" * 4_000_000), "has 4000000 characters"),
    (lambda: pb.GenerateRequest(prompt="x", n=16, max_new_tokens=4096, logprobs=20), "returned_values"),
    (lambda: pb.TokenizeRequest(messages=[pb.ChatMessage()] * 900_000), "router.limits.items"),
    (lambda: pb.TokenizeRequest(text="x" * 4_000_000), "router.limits.prompt_characters"),
]


def with_ids(ids: list[int]) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt_token_ids=pb.TokenIds(ids=ids))


def sampled(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt="x", sampling=common.SamplingParams(**fields))


def speculating(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt="x", speculation=pb.SpeculationParams(**fields))


def resuming(choices: Iterable[pb.ReceivedChoice]) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt="x", resume=pb.Resumption(choices=choices))


async def test_a_bad_call_costs_little_and_its_status_is_small(rig: HttpRig) -> None:
    stub = rig.rig.stub
    for make, part in CALLS:
        request = make()
        call = stub.Tokenize if isinstance(request, pb.TokenizeRequest) else stub.Generate

        async def send(call: Any = call, request: Any = request, part: str = part) -> None:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request, timeout=240)
            error = caught.value
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
            metadata = [(key, value) for key, value in error.trailing_metadata() or ()]
            assert any(part.encode() in value for _, value in metadata), (part, error.details())
            size = len(error.details() or "") + sum(len(value) for _, value in metadata)
            assert size <= MOST_METADATA_BYTES

        await assert_cheap(send, part)


async def test_a_large_response_is_made_in_short_pieces(rig: HttpRig) -> None:
    least = 16 * 400 * 20 * 8

    async def send(attempt: int) -> None:
        fields = {"max_tokens": 400, "logprobs": 20, "n": 16, "seed": attempt, "ignore_eos": True}
        response = await rig.post(COMPLETIONS, {"model": MODEL, "prompt": "x", **fields})
        assert response.status_code == 200 and len(response.content) > least

    async def generate(attempt: int) -> None:
        sampling = common.SamplingParams(ignore_eos=True, seed=attempt)
        request = pb.GenerateRequest(prompt="x", max_new_tokens=400, n=16, logprobs=20, sampling=sampling)
        # NOTE: reading the response in the test would take a while, too; its bytes are enough.
        call = rig.rig.channel.unary_unary("/flyserve.v1.Generation/Generate")
        assert len(await call(request.SerializeToString(), timeout=100)) > least

    await assert_short_pieces(send)
    await assert_short_pieces(generate)


async def assert_cheap(work: Callable[[], Awaitable[None]], name: str) -> None:
    """Assert that in one of several runs the process needs little CPU time, and the loop never for long."""
    found = []
    for _ in range(ATTEMPTS):
        started = time.process_time()
        with longest_piece() as longest:
            await work()
        found.append((time.process_time() - started, longest.seconds, longest.name))
        if found[-1][0] <= MOST_CPU_S and longest.seconds <= MAX_PIECE_S:
            return
    raise AssertionError((name, found))
