"""Reproducible drafts: the preset `official` is the published loop, whatever becomes of its replicas."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flyserve.core.errors import FlyServeError, InternalError, NotReady, Overloaded
from flyserve.core.messages import Load, Open
from flyserve.core.request import SamplingParams
from flyserve.v1 import generation_pb2 as pb
from tests.contract.fakes import EOS, FakeDrafter, FakeTarget, HashModel, Script, dies_at, held
from tests.contract.router_rig import EXACT, FLY, PLAIN, PROMPT, Rig, ids, joined, make_request, running
from tests.support.official_loop import official_response

LENGTH, LIMIT_S = 60, 30
TARGET_MODEL = HashModel(certain_share=0.3)
DRAFTER_MODEL = HashModel(agreement=0.85)
OFFICIAL: dict[str, Any] = {"preset": "official", "draft_length": {"max": 15}}
GREEDY = SamplingParams()


class Judge:
    """A `HashModel` as a model of the published loop."""

    def __init__(self, model: HashModel) -> None:
        self._model = model

    def judge(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        prefixes = [ids[:end] for end in range(len(ids) - count + 1, len(ids) + 1)]
        choices = [self._model.choice(prefix, GREEDY, len(PROMPT)) for prefix in prefixes]
        return choices, [self._model.entropy(prefix) for prefix in prefixes]


def published(ends_at: int = 10_000) -> list[int]:
    models = (HashModel(certain_share=0.3, ends_at=ends_at), DRAFTER_MODEL)
    return official_response(*map(Judge, models), PROMPT, EOS, LENGTH)


@asynccontextmanager
async def impatient(
    model: Path, targets: Sequence[FakeTarget] = (), drafters: Sequence[FakeDrafter] = (), **config: Any
) -> AsyncIterator[Rig]:
    """Run a router whose rounds wait for no draft unless the rule says so."""
    drafting = drafters or [FakeDrafter(DRAFTER_MODEL)]
    verifying = targets or [FakeTarget(TARGET_MODEL)]
    async with running(model, verifying, drafting, draft_patience=0.0, **config) as rig:
        yield rig


async def official(rig: Rig, length: int = LENGTH, **fields: Any) -> Any:
    return await rig.generate(FLY, length, speculation=OFFICIAL, **fields)


async def test_every_round_has_a_whole_draft_up_to_any_budget(model: Path) -> None:
    expected, verdicts = published(), set()
    async with impatient(model) as rig:
        for length in (1, 2, 7, 16, 17, 33, LENGTH):
            response = await official(rig, length)
            assert ids(response) == expected[:length]
            assert {played.drafted for played in response.rounds} == {15} and not response.warnings
            verdicts |= {token.verdict for token in response.tokens}
        assert pb.VERDICT_RESCUED in verdicts and pb.VERDICT_CORRECTED in verdicts


async def test_the_context_alone_shortens_drafts(model: Path) -> None:
    room = 20
    small = FakeTarget(HashModel(certain_share=0.3, context_length=len(PROMPT) + room))
    async with impatient(model, [small]) as rig:
        response = await official(rig)
    assert len(response.tokens) == room and response.rounds[0].drafted == 15
    assert all(played.drafted for played in response.rounds)


async def test_the_response_ends_where_the_published_one_does(model: Path) -> None:
    target = FakeTarget(HashModel(certain_share=0.3, ends_at=30))
    async with impatient(model, [target]) as rig:
        assert ids(await official(rig)) == published(ends_at=30)


async def test_the_load_does_not_end_drafts(model: Path) -> None:
    target = FakeTarget(TARGET_MODEL)
    target.reported = Load(sequences=99)
    speculation = {"preset": "official", "draft_length": {"max_sequences": 1}}
    async with impatient(model, [target], speculation=speculation) as rig:
        response = await rig.generate(FLY, LENGTH)
    assert ids(response) == published() and {played.drafted for played in response.rounds} == {15}


@pytest.mark.parametrize("tier", ["drafter", "target"])
@pytest.mark.parametrize("step", [1, 3])
async def test_another_replica_continues_after_a_loss(model: Path, tier: str, step: int) -> None:
    targets = [FakeTarget(TARGET_MODEL), FakeTarget(TARGET_MODEL)]
    drafters = [FakeDrafter(DRAFTER_MODEL), FakeDrafter(DRAFTER_MODEL)]
    lost = drafters[0] if tier == "drafter" else targets[0]
    dies_at(lost, step)
    async with impatient(model, targets, drafters, balancing="round_robin") as rig:
        responses = [await official(rig), await official(rig)]
    assert [ids(response) for response in responses] == [published()] * 2
    assert lost.num_steps == step and not any(response.warnings for response in responses)


@pytest.mark.parametrize("fault", [InternalError("NaN"), NotReady("away")], ids=["kept", "probed"])
async def test_no_round_asks_a_drafter_again_that_failed_while_another_is_left(
    model: Path, fault: FlyServeError
) -> None:
    """Each of these faults leaves the drafter in use, and the policy selects it again."""
    drafters, failed = [FakeDrafter(DRAFTER_MODEL) for _ in range(3)], list[FakeDrafter]()

    def script(drafter: FakeDrafter) -> Script:
        async def fail(number: int) -> None:
            if drafter in failed or len(failed) < 2:
                failed.append(drafter)
                raise fault

        return fail

    for each in drafters:
        each.script = script(each)
    async with impatient(model, drafters=drafters) as rig:
        response = await official(rig)
    assert ids(response) == published() and not response.warnings
    assert len(failed) == len(set(failed)) == 2


async def test_a_response_is_resumed_at_the_end_of_any_chunk(model: Path) -> None:
    async with impatient(model) as rig:
        chunks = await rig.stream(FLY, LENGTH, speculation=OFFICIAL)
        for cut in range(1, len(chunks)):
            received = joined(chunks[:cut])
            resume = pb.Resumption(choices=[pb.ReceivedChoice(token_ids=received)])
            rest = await rig.stream(FLY, LENGTH, speculation=OFFICIAL, resume=resume)
            assert received + joined(rest) == published()
    assert len(chunks) > 3


class FullDrafter(FakeDrafter):
    """A drafter without a place."""

    @asynccontextmanager
    async def session(self, opening: Open) -> AsyncIterator[Any]:
        raise Overloaded("0 sequences are open", 60.0)
        yield


async def test_a_full_drafter_costs_drafts_and_a_warning(model: Path) -> None:
    async with impatient(model, drafters=[FullDrafter(DRAFTER_MODEL)]) as rig:
        plain, response = await rig.generate(PLAIN), await official(rig)
        assert ids(response) == ids(plain)
        missed, warning = response.warnings
        assert "had no draft" in missed and "reproducible_drafts" in warning
    drafters = [FullDrafter(DRAFTER_MODEL), FakeDrafter(DRAFTER_MODEL)]
    async with impatient(model, drafters=drafters) as rig:
        responses = [await official(rig) for _ in range(2)]
    assert all(ids(response) == published() and not response.warnings for response in responses)


async def test_a_drafter_that_answers_nothing_is_waited_for_until_the_request_ends(model: Path) -> None:
    target, drafter = FakeTarget(TARGET_MODEL), FakeDrafter(DRAFTER_MODEL)
    gate = held(drafter)
    async with impatient(model, [target], [drafter]) as rig:
        async with asyncio.timeout(LIMIT_S):
            call = rig.stub.Generate(make_request(FLY, LENGTH, speculation=OFFICIAL))
            await drafter.stepped.wait()
            call.cancel()
            await drafter.all_closed.wait()
            drafter.stepped.clear()
            waiting = asyncio.create_task(official(rig))
            await drafter.stepped.wait()
            assert not target.num_steps
            gate.set()
            assert ids(await waiting) == published()


async def test_drafters_copy_no_earlier_response(model: Path) -> None:
    drafter = FakeDrafter(DRAFTER_MODEL)
    async with impatient(model, drafters=[drafter]) as rig:
        await official(rig)
        await rig.generate(FLY)
        await rig.generate(EXACT, speculation={"preset": "official"})
    assert [opening.without_copies for opening in drafter.openings] == [True, False, False]
