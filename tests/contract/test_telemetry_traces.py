"""A request's trace over all processes, as a collector on a real socket receives it."""

from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from flyserve.v1 import generation_pb2 as pb
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


def tracing(receiver: Collector, ratio: float = 1.0) -> dict[str, object]:
    return {"otlp_endpoint": receiver.endpoint, "trace_ratio": ratio}


def parent_of(span: Collected, spans: list[Collected]) -> Collected:
    (parent,) = [other for other in spans if other.id == span.parent]
    return parent


async def test_the_spans_of_a_request_are_one_tree_over_all_processes(model: Path) -> None:
    asked: dict[str, Any] = {"prompt_token_ids": None, "prompt": PROMPT, "stop": ["never said"]}
    with collector() as receiver:
        async with running_with_telemetry(model, tracing(receiver)) as rig:
            answer = await rig.generate(EXACT, 100, request_id="traced", **asked)
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
    check_events({span.name: span for span in spans}, answer.statistics)
    for said in (PROMPT, "quick", "never said", answer.text, answer.text[:8]):
        assert not any(said.encode() in sent for sent in receiver.raw)


def check_events(span: dict[str, Collected], statistics: pb.Statistics) -> None:
    """Check that rounds and steps are events, with the figures of the response."""
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
async def test_a_client_with_a_trace_decides_for_its_requests_in_both_apis(
    model: Path, flags: str, is_traced: bool
) -> None:
    given = {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-{flags}"}
    with collector() as receiver:
        telemetry = tracing(receiver, ratio=float(not is_traced))
        async with running_with_telemetry(model, telemetry, http_port=0) as rig:
            await rig.stub.Generate(make_request(PLAIN, 4), metadata=tuple(given.items()))
            body = {"model": model.name, "prompt": [40, 41], "max_tokens": 4, "temperature": 0}
            async with httpx2.AsyncClient(base_url=rig.addresses[1], timeout=240, headers=given) as http:
                assert (await http.post("/v1/completions", json=body)).status_code == 200
    roots = [span for span in receiver.spans if span.name == "generate"]
    found = [(span.trace.hex(), span.parent.hex()) for span in roots]
    assert found == [(CLIENT_TRACE, CLIENT_SPAN)] * 2 * is_traced
    assert is_traced or not receiver.spans


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
