"""A request's trace over router, drafter, sub-drafter and target, as a collector on a real socket gets it."""

import time
from collections import Counter
from pathlib import Path

import grpc
import httpx2
import pytest

from tests.contract.fakes import save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, make_request
from tests.contract.telemetry_rig import telling
from tests.support.collector import Collected, Collector, collector

CLIENT_TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENTS = {
    "round": "generate",
    "draft": "round",
    "verify": "round",
    "target.verify": "verify",
    "drafter.draft": "draft",
    "proposal": "drafter.draft",
    "sub_drafter.draft": "proposal",
}
SERVICES = {"target.verify": "flyserve-target", "sub_drafter.draft": "flyserve-sub_drafter"}
SERVICES |= {"drafter.draft": "flyserve-drafter", "proposal": "flyserve-drafter"}
PROMPT = "the quick brown fox jumps over the lazy dog"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tokenizer(tmp_path)


def tracing(taker: Collector, ratio: float = 1.0) -> dict[str, object]:
    return {"otlp_endpoint": taker.endpoint, "trace_ratio": ratio}


def parent_of(span: Collected, spans: list[Collected]) -> Collected:
    (parent,) = [other for other in spans if other.id == span.parent]
    return parent


async def test_the_spans_of_a_request_are_one_tree_over_all_processes(model: Path) -> None:
    with collector() as taker:
        async with telling(model, tracing(taker)) as rig:
            answer = await rig.generate(EXACT, 100, request_id="traced")
    spans = taker.spans
    (root,) = [span for span in spans if not span.parent]
    assert (root.name, root.service, root.attributes["request_id"]) == (
        "generate",
        "flyserve-router",
        "traced",
    )
    assert {span.trace for span in spans} == {root.trace}
    assert len({span.id for span in spans}) == len(spans)
    for span in spans:
        if span is not root:
            parent = parent_of(span, spans)
            assert parent.name == PARENTS[span.name]
            assert parent.start_ns <= span.start_ns
        assert span.service == SERVICES.get(span.name, "flyserve-router")
        assert span.start_ns <= span.end_ns and not span.is_error
    counted = Counter(span.name for span in spans)
    rounds = answer.statistics.rounds
    assert counted["generate"] == 1
    assert {counted[name] for name in ("round", "verify", "target.verify")} == {rounds}
    assert counted["draft"] == counted["drafter.draft"] <= rounds
    assert counted["proposal"] == counted["sub_drafter.draft"] > 0
    drafted = sum(span.attributes["tokens"] for span in spans if span.name == "drafter.draft")
    assert drafted == answer.statistics.drafted


async def test_two_choices_are_parts_of_one_request(model: Path) -> None:
    with collector() as taker:
        async with telling(model, tracing(taker)) as rig:
            choices, _ = await rig.choices(EXACT, 20, n=2)
    (root,) = [span for span in taker.spans if span.name == "generate"]
    rounds = [span for span in taker.spans if span.name == "round"]
    assert len(rounds) == sum(choice.statistics.rounds for choice in choices)
    assert {span.parent for span in rounds} == {root.id}


@pytest.mark.parametrize(("flags", "is_traced"), [("01", True), ("00", False)])
async def test_a_client_with_a_trace_decides_for_its_requests(
    model: Path, flags: str, is_traced: bool
) -> None:
    told = (("traceparent", f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-{flags}"),)
    with collector() as taker:
        async with telling(model, tracing(taker, ratio=float(not is_traced))) as rig:
            await rig.stub.Generate(make_request(PLAIN, 4), metadata=told)
    roots = [span for span in taker.spans if span.name == "generate"]
    assert [(span.trace.hex(), span.parent.hex()) for span in roots] == [
        (CLIENT_TRACE, CLIENT_SPAN)
    ] * is_traced
    assert is_traced or not taker.spans


@pytest.mark.parametrize("told", ["", "nonsense", f"00-{'0' * 32}-{CLIENT_SPAN}-01"])
async def test_at_ratio_0_nothing_is_traced_whatever_nonsense_a_client_tells(model: Path, told: str) -> None:
    with collector() as taker:
        async with telling(model, tracing(taker, ratio=0.0)) as rig:
            await rig.stub.Generate(make_request(EXACT, 8), metadata=(("traceparent", told),))
    assert not taker.spans


async def test_a_process_that_traces_nothing_leaves_a_gap_and_no_more(model: Path) -> None:
    with collector() as taker:
        async with telling(model, tracing(taker), silent=("drafter",)) as rig:
            await rig.generate(EXACT, 40)
    names = {span.name for span in taker.spans}
    assert names == {"generate", "round", "draft", "verify", "target.verify"}


async def test_a_failed_request_is_an_error_in_its_trace_without_words(model: Path) -> None:
    with collector() as taker:
        async with telling(model, tracing(taker)) as rig:
            with pytest.raises(grpc.aio.AioRpcError):
                await rig.stub.Generate(
                    make_request(PLAIN, 4, prompt_token_ids=None, prompt=PROMPT, n=10_000)
                )
    (root,) = taker.spans
    assert root.is_error
    assert root.attributes == {"outcome": "invalid_request", "error.type": "InvalidRequest"}


async def test_what_was_said_is_in_no_span(model: Path) -> None:
    with collector() as taker:
        async with telling(model, tracing(taker)) as rig:
            fields = {"prompt_token_ids": None, "prompt": PROMPT, "stop": ["never said"]}
            answer = await rig.generate(EXACT, 40, **fields)
    assert taker.raw and answer.text
    for said in (PROMPT, "quick", "never said", answer.text, answer.text[:8]):
        assert not any(said.encode() in sent for sent in taker.raw)


async def test_a_collector_that_is_away_disturbs_nobody(model: Path) -> None:
    async with telling(model, {"otlp_endpoint": "http://127.0.0.1:1", "trace_ratio": 1.0}) as rig:
        answers = [await rig.generate(EXACT, 40) for _ in range(3)]
        ended_at = time.monotonic()
    assert len({tuple(token.id for token in answer.tokens) for answer in answers}) == 1
    assert time.monotonic() - ended_at < 8


async def test_a_client_over_http_may_bring_its_trace(model: Path) -> None:
    told = {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"}
    with collector() as taker:
        async with telling(model, tracing(taker, ratio=0.0), http_port=0) as rig:
            url = rig.hosts["router"].addresses[1]
            body = {"model": model.name, "prompt": [40, 41], "max_tokens": 4, "temperature": 0}
            async with httpx2.AsyncClient(base_url=url, timeout=20, headers=told) as http:
                assert (await http.post("/v1/completions", json=body)).status_code == 200
    (root,) = [span for span in taker.spans if span.name == "generate"]
    assert (root.trace.hex(), root.parent.hex()) == (CLIENT_TRACE, CLIENT_SPAN)
