"""The drafters' own model over real sockets: decoded by drafters alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from flyserve.core.errors import Overloaded
from flyserve.core.messages import Draft, Open
from flyserve.v1 import generation_pb2 as pb
from tests.contract.fakes import EOS, FakeDrafter, FakeTarget, answers_at, closed, dies_at
from tests.contract.http_rig import MODEL, error_of, events
from tests.contract.router_rig import EXACT, PLAIN, PROMPT, Rig, ids, joined, make_request, running
from tests.contract.scripted import SeededModel
from tests.support.serving import serving as serving_host

DRAFT = pb.MODE_DRAFT
OTHER = SeededModel(agreement=0.5, ends_at=200)
"""The drafters' model: the targets' makes other choices."""
INTERVAL_S = 4e-6
"""Stream interval of four forwards of a fake, each of which takes 1 µs by its own account."""


def drafter(places: int = 4, **info: Any) -> FakeDrafter:
    return FakeDrafter(OTHER, standalone_sequences=places, **info)


@asynccontextmanager
async def serving(folder: Path, *drafters: FakeDrafter, **config: Any) -> AsyncIterator[Rig]:
    """Serve drafters beside a target of another model."""
    config = {"replica_wait_s": 0.2, **config}
    async with running(folder, [FakeTarget(SeededModel())], drafters, **config) as rig:
        yield rig


async def own_tokens(folder: Path, length: int = 60, **fields: Any) -> list[int]:
    """Return what the drafters' model decodes as a target, in mode plain."""
    async with running(folder, [FakeTarget(OTHER)]) as rig:
        return ids(await rig.generate(PLAIN, length, **fields))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 11}])
@pytest.mark.parametrize("interval_s", [0.0, INTERVAL_S])
async def test_the_drafter_alone_decodes_what_its_model_decodes(
    model: Path, sampling: dict[str, Any], interval_s: float
) -> None:
    expected, one = await own_tokens(model, sampling=sampling), drafter()
    async with serving(model, one, stream_interval_s=interval_s) as rig:
        found = await rig.generate(DRAFT, sampling=sampling)
        exact = await rig.generate(EXACT, sampling=sampling)
    assert ids(found) == expected != ids(exact)
    assert {token.verdict for token in found.tokens} == {pb.VERDICT_DRAFT}
    assert not any(token.HasField("entropy") for token in found.tokens)
    assert [token.choice for token in found.tokens] == expected
    statistics = found.statistics
    assert (statistics.emitted, statistics.drafter_forwards) == (60, 60)
    assert (statistics.drafted, statistics.accepted, statistics.verify_s) == (0, 0, 0)
    assert statistics.rounds == len(found.rounds) and (statistics.rounds < 60) == bool(interval_s)
    assert one.openings[0].standalone and not one.openings[1].standalone


@pytest.mark.parametrize("interval_s", [0.0, INTERVAL_S])
async def test_stop_tokens_stop_strings_and_choices(model: Path, interval_s: float) -> None:
    async with serving(model, drafter(), stream_interval_s=interval_s) as rig:
        whole = await rig.generate(DRAFT, 300)
        assert ids(whole)[-1] == EOS and whole.finish_reason == pb.FINISH_REASON_STOP_TOKEN
        stop = whole.text[20:24]
        cut = await rig.generate(DRAFT, 300, stop=[stop])
        assert cut.text == whole.text[: whole.text.index(stop)]
        choices, _ = await rig.choices(DRAFT, 20, n=3, sampling={"temperature": 1.0, "seed": 3})
        singles = [await rig.generate(DRAFT, 20, sampling={"temperature": 1.0, "seed": 3})]
    assert [len(choice.tokens) for choice in choices] == [20] * 3
    assert ids(choices[0]) == ids(singles[0]) != ids(choices[1])


async def test_a_stream_has_several_tokens_per_chunk_and_can_be_resumed(model: Path) -> None:
    async with serving(model, drafter(), stream_interval_s=INTERVAL_S) as rig:
        chunks = await rig.stream(DRAFT, 40)
        origin = pb.Origin(mode=DRAFT, seed=chunks[0].origin.seed, weight_fingerprint="w1", max_new_tokens=40)
        assert chunks[0].origin == origin and len(chunks) < 20
        received = joined(chunks[:3])
        resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=received)], weight_fingerprint="w1")
        rest = await rig.stream(DRAFT, 40, resume=resume)
    assert received + joined(rest) == joined(chunks)


@pytest.mark.parametrize("answers_nothing", [False, True])
async def test_another_drafter_continues_a_response(model: Path, answers_nothing: bool) -> None:
    expected, (first, second) = await own_tokens(model), (drafter(), drafter())
    if answers_nothing:
        answers_at(first, {5}, Draft(0, ()))
    else:
        dies_at(first, 5)
    async with serving(model, first, second, balancing="round_robin") as rig:
        responses = [await rig.generate(DRAFT), await rig.generate(DRAFT)]
    assert [ids(response) for response in responses] == [expected] * 2
    assert sorted(response.statistics.replays for response in responses) == [0, 1]


async def test_a_drafter_with_other_kernels_says_that_it_continued(model: Path) -> None:
    first, second = drafter(kernels="k1"), drafter(kernels="k2")
    dies_at(first, 5)
    async with serving(model, first, second, balancing="round_robin") as rig:
        responses = [await rig.generate(DRAFT), await rig.generate(DRAFT)]
    for response in responses:
        is_said = any("other kernels" in warning for warning in response.warnings)
        assert is_said == bool(response.statistics.replays)


def holds(service: FakeDrafter) -> asyncio.Event:
    """Let every standalone sequence wait at its second step until the event is set."""
    released = asyncio.Event()

    async def script(number: int) -> None:
        if service.openings[-1].standalone and number > 1:
            await released.wait()

    service.script = script
    return released


async def test_a_full_tier_refuses_at_once_and_normal_requests_go_on(model: Path) -> None:
    one = drafter(places=1, max_sequences=8)
    released = holds(one)
    async with serving(model, one) as rig:
        first = asyncio.create_task(rig.generate(DRAFT))
        await one.stepped.wait()
        error = await rig.error_of(make_request(DRAFT))
        exact, plain = await rig.generate(EXACT, 20), await rig.generate(PLAIN, 20)
        released.set()
        assert len((await first).tokens) == 60
        assert len((await rig.generate(DRAFT)).tokens) == 60, "the place is free again"
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "1 of 1 places for responses of the drafters' own model are in use" in (error.details() or "")
    assert ids(exact) == ids(plain)


async def test_after_a_restart_responses_need_not_wait_for_the_first_one(model: Path) -> None:
    one, both_are_here = drafter(), asyncio.Event()

    async def script(number: int) -> None:
        if number == 1:
            await both_are_here.wait()
        both_are_here.set()

    async with serving(model, one, replica_wait_s=240.0) as rig:
        await one.host.drain(0.0)
        await rig.misses_drafters()
        again = drafter(address=one.host.address)
        again.script = script
        async with serving_host(again.host):
            await rig.meets_a_drafter()
            responses = await asyncio.gather(*(rig.generate(DRAFT, 5) for _ in range(2)))
    assert [len(response.tokens) for response in responses] == [5, 5]


async def test_more_choices_than_places_decode_one_after_the_other(model: Path) -> None:
    one = drafter(places=1)
    fields = {"n": 3, "sampling": {"temperature": 1.0, "seed": 3}}
    async with serving(model, one) as rig:
        few, _ = await rig.choices(DRAFT, 20, **fields)
    async with serving(model, drafter(places=3)) as rig:
        many, _ = await rig.choices(DRAFT, 20, **fields)
    assert [ids(choice) for choice in few] == [ids(choice) for choice in many]
    assert one.num_opened == 3


class RefusingDrafter(FakeDrafter):
    """A drafter without a place for standalone sequences: those of other routers have all of them."""

    @asynccontextmanager
    async def session(self, opening: Open) -> AsyncIterator[Any]:
        if opening.standalone:
            self.openings.append(opening)
            raise Overloaded("4 sequences without a target are open, at most 4 are allowed", 2.0)
        async with super().session(opening) as session:
            yield session


async def test_a_drafter_that_refuses_is_not_avoided_by_drafts(model: Path) -> None:
    full, free = RefusingDrafter(OTHER, standalone_sequences=4), drafter()
    expected = await own_tokens(model)
    async with serving(model, full, free, balancing="round_robin") as rig:
        found = [ids(await rig.generate(DRAFT)) for _ in range(2)]
    assert found == [expected] * 2 and full.openings
    async with serving(model, alone := RefusingDrafter(OTHER, standalone_sequences=4)) as rig:
        error = await rig.error_of(make_request(DRAFT))
        assert (await rig.generate(EXACT)).statistics.drafted and alone.num_opened == 1
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "at most 4 are allowed" in (error.details() or "")


async def test_a_client_that_leaves_frees_the_drafter(model: Path) -> None:
    one = drafter()
    holds(one)
    async with serving(model, one) as rig:
        call = rig.stub.Generate(make_request(DRAFT))
        await one.stepped.wait()
        call.cancel()
        await closed(one)
        timeout_s = await rig.expired(make_request(DRAFT), one)
        assert 0 < one.openings[-1].deadline_ms <= 1000 * timeout_s


async def test_what_a_drafter_cannot_do_is_refused_by_name(model: Path) -> None:
    async with serving(model, drafter()) as rig:
        for fields, part in (
            ({"logprobs": 0}, "logprobs is 0, must be absent: the drafter's own model returns no log-prob"),
            ({"prompt_logprobs": 2}, "prompt_logprobs is 2, must be absent"),
            ({"prediction": "the fox"}, "prediction needs drafts, but speculation.mode is draft"),
        ):
            error = await rig.error_of(make_request(DRAFT, **fields))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and part in (error.details() or "")


async def test_what_has_no_effect_is_reported(model: Path) -> None:
    async with serving(model, drafter(), speculation={"draft_length": {"max": 15}}) as rig:
        found = await rig.generate(
            DRAFT, 5, sampling={"temperature": 1, "coupling": 2}, speculation={"window": 3}
        )
    assert list(found.warnings) == [
        "speculation.window has no effect in mode draft",
        "sampling.coupling has no effect in mode draft",
    ]


LOOKUP = {"weight_fingerprint": "", "architecture": "suffix"}


@pytest.mark.parametrize(
    ("drafters", "reason"),
    [
        ([], "there is no drafter that runs a model"),
        ([LOOKUP], "looks tokens up (suffix) and runs no model"),
        ([{"standalone_sequences": 0}], "drafter.standalone_sequences is 0"),
    ],
)
async def test_without_a_model_of_its_own_there_is_none(
    model: Path, drafters: list[dict[str, Any]], reason: str
) -> None:
    made = [FakeDrafter(OTHER, **info) for info in drafters]
    async with serving(model, *made) as rig:
        error = await rig.error_of(make_request(DRAFT))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and reason in (error.details() or "")


class TestOverHttp:
    """The same model by its name, NAME-draft."""

    async def test_it_is_listed_described_and_answers(self, model: Path) -> None:
        async with http(model, drafter(context_length=100)) as post:
            listed = (await post("GET", "/v1/models")).json()["data"]
            assert [(each["id"], each["max_model_len"]) for each in listed] == [
                (MODEL, 512),
                (f"{MODEL}-draft", 100),
            ]
            described = await post("GET", f"/v1/models/{MODEL}-draft")
            assert described.json() == listed[1]
            answer = await post("POST", "/v1/completions", **COMPLETION, verdicts=True)
            body = answer.json()
            assert body["model"] == f"{MODEL}-draft" and body["usage"]["completion_tokens"] == 9
            tokens = body["choices"][0]["flyserve"]["tokens"]
            assert {token["verdict"] for token in tokens} == {"draft"}
            expected = await own_tokens(model, 9)
            assert [token["id"] for token in tokens] == expected
            streamed = events((await post("POST", "/v1/completions", **COMPLETION, stream=True)).text)
            assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == body["choices"][0]["text"]
            metrics = (await post("GET", "/metrics")).text
            assert 'flyserve_tokens_total{mode="draft",verdict="draft"} 18.0' in metrics
            assert 'flyserve_requests_total{mode="draft",outcome="ok"} 2.0' in metrics

    async def test_faults_name_their_field(self, model: Path) -> None:
        async with http(model, drafter()) as post:
            for fields, param, part in (
                ({"model": "other"}, "model", "serves 'fake' and 'fake-draft'"),
                ({"speculation": {"mode": "exact"}}, "speculation.mode", "no target takes part"),
                ({"model": MODEL, "speculation": {"mode": "draft"}}, "speculation.mode", "or 'fly'"),
                ({"logprobs": 1}, "logprobs", "no log-probabilities"),
                ({"echo": True, "logprobs": 1}, "logprobs", "no log-probabilities"),
                ({"prediction": {"type": "content", "content": "a"}}, "prediction", "needs drafts"),
            ):
                refused = await post("POST", "/v1/completions", **{**COMPLETION, **fields})
                assert (refused.status_code, error_of(refused)["param"]) == (
                    404 if param == "model" else 400,
                    param,
                ), refused.text
                assert part in error_of(refused)["message"]

    async def test_without_it_the_name_is_unknown_and_not_listed(self, model: Path) -> None:
        async with http(model, FakeDrafter(OTHER, weight_fingerprint="", architecture="suffix")) as post:
            listed = (await post("GET", "/v1/models")).json()["data"]
            refused = await post("POST", "/v1/completions", **COMPLETION)
        assert [each["id"] for each in listed] == [MODEL]
        assert refused.status_code == 404 and error_of(refused)["code"] == "model_not_found"
        assert "the drafter looks tokens up (suffix)" in error_of(refused)["message"]


COMPLETION = {"model": f"{MODEL}-draft", "prompt": PROMPT, "max_tokens": 9, "temperature": 0}


@asynccontextmanager
async def http(folder: Path, *drafters: FakeDrafter) -> AsyncIterator[Any]:
    """Yield a function that calls the HTTP API."""
    async with (
        serving(folder, *drafters, http_port=0, model_name=MODEL) as rig,
        httpx2.AsyncClient(base_url=rig.addresses[1], timeout=240) as client,
    ):

        async def call(method: str, path: str, **body: Any) -> Any:
            return await client.request(method, path, json=body or None)

        yield call


async def test_the_wait_for_a_drafter_is_bounded(model: Path) -> None:
    one = drafter()
    limits = {"replica_wait_s": 240.0, "max_concurrent": 1, "max_queued": 1}
    async with (
        serving(model, one, http_port=0, **limits) as rig,
        httpx2.AsyncClient(base_url=rig.addresses[1], timeout=240) as client,
        asyncio.timeout(240),
    ):
        await rig.generate(DRAFT, 5)
        await one.host.drain(0.0)
        await rig.misses_drafters()
        calls = [asyncio.create_task(rig.generate(DRAFT, 5)) for _ in range(2)]
        while "flyserve_requests_queued 2.0\n" not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.01)
        error = await rig.error_of(make_request(DRAFT, 5))
        for call in calls:
            call.cancel()
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "no drafter is ready, and 2 requests wait for one already" in (error.details() or "")


async def test_a_response_is_never_continued_with_other_weights(model: Path) -> None:
    first, second = drafter(), drafter(weight_fingerprint="w2")
    for each in (first, second):
        dies_at(each, 5)
    async with serving(model, first, second) as rig:
        error = await rig.error_of(make_request(DRAFT))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
