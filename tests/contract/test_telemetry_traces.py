"""A request's trace over all processes, as a collector on a real socket receives it."""

import asyncio
from collections import Counter
from pathlib import Path

import grpc
import httpx2
import pytest

from tests.contract.fakes import save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, make_request
from tests.contract.telemetry_rig import running_with_telemetry
from tests.support.collector import Collected, Collector, collector

CLIENT_TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENTS = {
    "target.verify": "generate",
    "drafter.draft": "generate",
    "sub_drafter.draft": "drafter.draft",
}
SERVICES = {
    "generate": "flyserve-router",
    "target.verify": "flyserve-target",
    "drafter.draft": "flyserve-drafter",
    "sub_drafter.draft": "flyserve-sub_drafter",
}
PROMPT = "the quick brown fox jumps over the lazy dog"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tokenizer(tmp_path)


def tracing(receiver: Collector, ratio: float = 1.0) -> dict[str, object]:
    return {"otlp_endpoint": receiver.endpoint, "trace_ratio": ratio}


def parent_of(span: Collected, spans: list[Collected]) -> Collected:
    (parent,) = [other for other in spans if other.id == span.parent]
    return parent


async def test_the_spans_of_a_request_are_one_tree_over_all_processes(model: Path) -> None:
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver)) as rig:
            answer = await rig.generate(EXACT, 100, request_id="traced")
    spans = receiver.spans
    (root,) = [span for span in spans if not span.parent]
    assert (root.name, root.attributes["request_id"]) == ("generate", "traced")
    assert {span.trace for span in spans} == {root.trace}
    for span in spans:
        if span is not root:
            parent = parent_of(span, spans)
            assert parent.name == PARENTS[span.name]
            assert parent.start_ns <= span.start_ns
        assert span.service == SERVICES[span.name]
        assert span.process == ("mine", f"{span.service.removeprefix('flyserve-')}-0")
        assert span.start_ns <= span.end_ns and not span.is_error
        assert all(span.start_ns <= event.at_ns <= span.end_ns for event in span.events)
    assert Counter(span.name for span in spans) == dict.fromkeys(SERVICES, 1)
    assert answer.text


async def test_rounds_and_steps_are_events(model: Path) -> None:
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver)) as rig:
            answer = await rig.generate(EXACT, 100)
    statistics, span = answer.statistics, {span.name: span for span in receiver.spans}
    rounds, steps = span["generate"].events_named("round"), span["target.verify"].events_named("step")
    assert len(rounds) == len(steps) == statistics.rounds
    assert sum(round["drafted"] for round in rounds) == statistics.drafted
    assert sum(round["accepted"] for round in rounds) == statistics.accepted
    for part in ("draft_s", "verify_s", "wire_s"):
        total = getattr(statistics, part)
        assert sum(round[part] for round in rounds) == pytest.approx(total)
    assert sum(step["positions"] for step in steps) == statistics.rounds + statistics.drafted
    drafts = span["drafter.draft"].events_named("step")
    assert sum(step["tokens"] for step in drafts) >= statistics.drafted
    # NOTE: a draft that is late at the end of the response is a step of the drafter, and in no statistics.
    assert sum(step["forwards"] for step in drafts) >= statistics.drafter_forwards > 0
    assert len(span["sub_drafter.draft"].events_named("step")) > 0
    assert all(answer["seconds"] > 0 for answer in span["drafter.draft"].events_named("snippets"))
    (response,) = span["generate"].events_named("response")
    assert (response["finish_reason"], response["tokens"]) == ("length", 100)
    assert (response["rounds"], response["drafted"]) == (statistics.rounds, statistics.drafted)


async def test_a_long_response_keeps_its_last_rounds_and_its_totals(model: Path) -> None:
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver)) as rig:
            answer = await rig.generate(PLAIN, 200)
    (root,) = [span for span in receiver.spans if span.name == "generate"]
    assert answer.statistics.rounds == 200
    assert len(root.events) == 128 and root.num_dropped_events == 200 + 1 - 128
    assert root.events[-1].name == "response" and root.events[-1].attributes["rounds"] == 200


async def test_two_choices_are_parts_of_one_request(model: Path) -> None:
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver)) as rig:
            choices, _ = await rig.choices(EXACT, 20, n=2, request_id="both")
    (root,) = [span for span in receiver.spans if span.name == "generate"]
    rounds = Counter(round["choice"] for round in root.events_named("round"))
    assert rounds == {
        "both": choices[0].statistics.rounds,
        "both#1": choices[1].statistics.rounds,
    }
    streams = [span for span in receiver.spans if span.name == "target.verify"]
    assert {span.attributes["request_id"] for span in streams} == {"both", "both#1"}
    assert {span.parent for span in streams} == {root.id}


@pytest.mark.parametrize(("flags", "is_traced"), [("01", True), ("00", False)])
async def test_a_client_with_a_trace_decides_for_its_requests(
    model: Path, flags: str, is_traced: bool
) -> None:
    metadata = (("traceparent", f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-{flags}"),)
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver, ratio=float(not is_traced))) as rig:
            await rig.stub.Generate(make_request(PLAIN, 4), metadata=metadata)
    roots = [span for span in receiver.spans if span.name == "generate"]
    assert [(span.trace.hex(), span.parent.hex()) for span in roots] == [
        (CLIENT_TRACE, CLIENT_SPAN)
    ] * is_traced
    assert is_traced or not receiver.spans


@pytest.mark.parametrize("traceparent", ["", "nonsense", f"00-{'0' * 32}-{CLIENT_SPAN}-01"])
async def test_at_ratio_0_an_invalid_traceparent_traces_nothing(model: Path, traceparent: str) -> None:
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver, ratio=0.0)) as rig:
            await rig.stub.Generate(make_request(EXACT, 8), metadata=(("traceparent", traceparent),))
    assert not receiver.spans


async def test_a_process_without_tracing_leaves_a_gap_only(model: Path) -> None:
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver), silent=("drafter",)) as rig:
            await rig.generate(EXACT, 40)
    names = {span.name for span in receiver.spans}
    assert names == {"generate", "target.verify"}


async def test_a_failed_request_is_an_error_without_a_message(model: Path) -> None:
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver)) as rig:
            with pytest.raises(grpc.aio.AioRpcError):
                await rig.stub.Generate(
                    make_request(PLAIN, 4, prompt_token_ids=None, prompt=PROMPT, n=10_000)
                )
    (root,) = receiver.spans
    assert root.is_error and not root.events
    assert root.attributes == {"outcome": "invalid_request", "error.type": "InvalidRequest"}


async def test_no_span_contains_prompt_or_response(model: Path) -> None:
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver)) as rig:
            fields = {"prompt_token_ids": None, "prompt": PROMPT, "stop": ["never said"]}
            answer = await rig.generate(EXACT, 40, **fields)
    assert receiver.raw and answer.text
    for said in (PROMPT, "quick", "never said", answer.text, answer.text[:8]):
        assert not any(said.encode() in sent for sent in receiver.raw)


async def test_an_absent_collector_disturbs_no_request(model: Path) -> None:
    telemetry = {"otlp_endpoint": "http://127.0.0.1:1", "trace_ratio": 1.0}
    async with asyncio.timeout(120), running_with_telemetry(model, telemetry) as rig:
        answers = [await rig.generate(EXACT, 40) for _ in range(3)]
    assert len({tuple(token.id for token in answer.tokens) for answer in answers}) == 1


async def test_a_client_over_http_may_send_its_trace(model: Path) -> None:
    headers = {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"}
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver, ratio=0.0), http_port=0) as rig:
            url = rig.hosts["router"].addresses[1]
            body = {"model": model.name, "prompt": [40, 41], "max_tokens": 4, "temperature": 0}
            async with httpx2.AsyncClient(base_url=url, timeout=240, headers=headers) as http:
                assert (await http.post("/v1/completions", json=body)).status_code == 200
    (root,) = [span for span in receiver.spans if span.name == "generate"]
    assert (root.trace.hex(), root.parent.hex()) == (CLIENT_TRACE, CLIENT_SPAN)
