"""The table of errors in docs/architecture.md, row by row: the effects on the request and on the replica."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.core.errors import (
    ConfigError,
    DeadlineExceeded,
    FlyServeError,
    InternalError,
    InvalidRequest,
    ModelError,
    NotReady,
    Overloaded,
    Unauthenticated,
)
from flyserve.core.messages import Draft, Verification
from flyserve.v1 import generation_pb2 as pb
from tests.contract.fakes import FakeDrafter, FakeService, FakeTarget, HashModel, held
from tests.contract.router_rig import EXACT, PLAIN, Rig, ids, make_request, running

ROOT = Path(__file__).parents[2]
STATUS = grpc.StatusCode
EVENT_S = 240
NO_TOKEN = InvalidRequest.of("sampling.logit_bias", "leaves no token to choose at position 9")
RUBBISH = {FakeTarget: Verification(0, (), ()), FakeDrafter: Draft(0, tuple(range(2, 102)))}


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        faults: Errors that a replica raises; none is an answer that does not fit.
        status: What the client gets where all replicas but one are sound.
        replica: The last cell of the row.
    """

    faults: tuple[Exception, ...]
    status: STATUS
    replica: str


ROWS = {
    "invalid request": Row((NO_TOKEN,), STATUS.INVALID_ARGUMENT, "is kept"),
    "deadline of the request": Row((DeadlineExceeded("late"),), STATUS.DEADLINE_EXCEEDED, "is kept"),
    "internal error": Row((InternalError("NaN"), MemoryError(), KeyError("a bug")), STATUS.OK, "is kept"),
    "full": Row((Overloaded("full", 0.05),), STATUS.OK, "is kept, and avoided until it may have a place"),
    "no answer": Row(
        (NotReady("away"), Unauthenticated("no certificate"), ConfigError("odd"), ModelError("none")),
        STATUS.OK,
        "is probed",
    ),
    "answer that does not fit the step": Row((), STATUS.OK, "is left until its next handshake"),
}
CASES = [(name, fault) for name, row in ROWS.items() for fault in row.faults or (None,)]
IDS = [f"{name} {type(fault).__name__ if fault else ''}" for name, fault in CASES]


def probed(service: FakeService) -> asyncio.Event:
    """Return an event that is set by a probe of a service, which is not running yet."""
    event, answer = asyncio.Event(), service.Info

    async def info(request: Any, context: Any) -> Any:
        if service.num_opened:  # before, it is the handshake
            event.set()
        return await answer(request, context)

    service.Info = info  # type: ignore[method-assign]
    return event


def fails(service: FakeService, fault: Exception | None, steps: Callable[[int], bool]) -> list[int]:
    """Let a service fail at some steps; return the list of those at which it has."""
    failed: list[int] = []

    async def script(number: int) -> Any:
        if not steps(number):
            return None
        failed.append(number)
        if fault is not None:
            raise fault
        return RUBBISH[type(service)]

    service.script = script
    return failed


def test_the_table_of_the_documents_has_these_rows_and_every_error_is_in_it() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| error of a step |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert {re.split("[:;]", cell[0])[0]: cell[3] for cell in cells} == {
        name: row.replica for name, row in ROWS.items()
    }
    listed = {type(fault) for row in ROWS.values() for fault in row.faults}
    assert {
        kind for kind in FlyServeError.__subclasses__() if kind.__module__ == "flyserve.core.errors"
    } <= listed


async def check_replica(rig: Rig, row: Row, probes: asyncio.Event, caplog: pytest.LogCaptureFixture) -> None:
    """Check that a replica is treated as the row says; probes come only from a suspicion."""
    if row.replica == "is probed":
        async with asyncio.timeout(EVENT_S):
            await probes.wait()
    lost = [r for r in caplog.records if r.name.endswith("directory") and r.getMessage().endswith("failed")]
    assert bool(lost) == row.replica.startswith("is left"), [record.getMessage() for record in lost]
    if row.replica.startswith("is kept"):
        await rig.generate(PLAIN)  # meanwhile a suspicion would have caused a probe
        assert not probes.is_set()


@pytest.mark.parametrize(("name", "fault"), CASES, ids=IDS)
async def test_a_target_fails(
    model: Path, caplog: pytest.LogCaptureFixture, name: str, fault: Exception | None
) -> None:
    replicas = [FakeTarget(HashModel()) for _ in range(2)]
    probes = probed(replicas[0])
    async with running(model, replicas, balancing="round_robin", probe_interval_s=600) as rig:
        await check_fail_over(rig, PLAIN, replicas, ROWS[name], fault)
        await check_replica(rig, ROWS[name], probes, caplog)


async def check_fail_over(
    rig: Rig, mode: int, replicas: Sequence[FakeService], row: Row, fault: Exception | None
) -> None:
    """Check what happens to a response when its replica fails once, in its third step."""
    (first, second), expected = replicas, ids(await rig.generate(PLAIN))
    first.num_steps = 0
    failed = fails(first, fault, lambda number: number == 3)
    found, tokens, opened = STATUS.OK, expected, 0
    while not failed:
        assert (found, tokens) == (STATUS.OK, expected)
        opened = second.num_opened
        found, tokens = await outcome(rig.stub, make_request(mode))
    assert found is row.status and tokens == (expected if found is STATUS.OK else [])
    moved = second.num_opened - opened
    assert moved == (found is STATUS.OK), "another one is asked only where the request is not at fault"


async def outcome(stub: Any, request: pb.GenerateRequest) -> tuple[STATUS, list[int]]:
    try:
        return STATUS.OK, ids((await stub.Generate(request, timeout=240)).choices[0])
    except grpc.aio.AioRpcError as error:
        return error.code(), []


@pytest.mark.parametrize(("name", "fault"), CASES, ids=IDS)
async def test_a_drafter_fails_for_a_target(
    model: Path, caplog: pytest.LogCaptureFixture, name: str, fault: Exception | None
) -> None:
    row, drafter = ROWS[name], FakeDrafter(HashModel(agreement=0.8))
    probes = probed(drafter)
    failed = fails(drafter, fault, lambda number: number >= 3)
    async with running(model, [FakeTarget(HashModel())], [drafter], probe_interval_s=600) as rig:
        expected = ids(await rig.generate(PLAIN))
        answer = await rig.generate(EXACT)
        await check_replica(rig, row, probes, caplog)
    assert ids(answer) == expected and failed
    assert "had no draft" in answer.warnings[0]
    blamed = [r.getMessage() for r in caplog.records if "failed in mid-stream" in r.getMessage()]
    if row.status is STATUS.OK:
        assert bool(blamed) == (name != "full")
    else:
        assert (blamed, len(failed), drafter.num_opened) == ([], 1, 1), (
            "it is not asked again for this response"
        )


async def test_a_drafter_whose_answers_never_fit_is_tried_ever_more_rarely(model: Path) -> None:
    drafter, handshakes = FakeDrafter(HashModel()), list[float]()
    answer = drafter.Info

    async def info(request: Any, context: Any) -> Any:
        handshakes.append(time.monotonic())
        return await answer(request, context)

    drafter.Info = info  # type: ignore[method-assign]
    fails(drafter, None, lambda number: True)
    async with running(model, [FakeTarget(HashModel())], [drafter], probe_interval_s=600) as rig:
        while len(handshakes) < 6:
            await rig.generate(EXACT)
    assert handshakes[5] - handshakes[1] > 1.4, "delays of 0.1, 0.2, 0.4 and 0.8 s follow the first retry"


@pytest.mark.parametrize(("name", "fault"), CASES, ids=IDS)
async def test_a_drafter_fails_that_decodes_alone(
    model: Path, caplog: pytest.LogCaptureFixture, name: str, fault: Exception | None
) -> None:
    replicas = [FakeDrafter(HashModel(), standalone_sequences=4) for _ in range(2)]
    config: dict[str, Any] = {"balancing": "round_robin", "probe_interval_s": 600}
    probes = probed(replicas[0])
    async with running(model, [FakeTarget(HashModel())], replicas, **config) as rig:
        await check_fail_over(rig, pb.MODE_DRAFT, replicas, ROWS[name], fault)
        await check_replica(rig, ROWS[name], probes, caplog)


async def test_a_replica_without_room_for_a_sequence_is_not_asked(model: Path) -> None:
    async with running(model, [FakeTarget(HashModel())]) as rig:
        expected = ids(await rig.generate(PLAIN, 100))
    small, large = FakeTarget(HashModel(context_length=80)), FakeTarget(HashModel())
    drafter = FakeDrafter(HashModel(), standalone_sequences=4, context_length=80)
    roomy = FakeDrafter(HashModel(), standalone_sequences=4)
    async with running(model, [large, small], [roomy, drafter], balancing="round_robin") as rig:
        for mode in (PLAIN, EXACT, pb.MODE_DRAFT):
            for _ in range(2):
                assert ids(await rig.generate(mode, 100)) == expected
        assert not small.num_opened
        await rig.generate(PLAIN, 20), await rig.generate(PLAIN, 20)
        assert small.num_opened


async def test_beyond_the_context_of_its_drafter_a_response_has_drafts_of_another_one(model: Path) -> None:
    small, roomy = (FakeDrafter(HashModel(agreement=0.9, context_length=length)) for length in (80, 512))
    async with running(model, [FakeTarget(HashModel())], [small, roomy], balancing="round_robin") as rig:
        expected = ids(await rig.generate(PLAIN, 100))
        while not small.num_opened:
            response = await rig.generate(EXACT, 100)
            assert ids(response) == expected and not response.warnings
        assert roomy.num_opened
        num_opened, prompt = small.num_opened, pb.TokenIds(ids=[40] * 100)
        for _ in range(2):
            response = await rig.generate(EXACT, prompt_token_ids=prompt)
            assert response.statistics.drafted and not response.warnings
        assert small.num_opened == num_opened


async def test_beyond_the_context_of_the_only_drafter_a_response_leaves_its_place(model: Path) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel(agreement=0.0, context_length=80))
    gate = held(target, first=100)
    async with asyncio.timeout(EVENT_S), running(model, [target], [drafter]) as rig:
        call = asyncio.create_task(rig.generate(EXACT, 150))
        await drafter.all_closed.wait()
        assert not call.done()
        gate.set()
        response = await call
    assert "reached the drafter's context length of 80 tokens" in response.warnings[0]


async def test_a_target_may_answer_less_than_was_drafted(model: Path) -> None:
    """A draft after which nothing can be chosen, as of a grammar, is not scored, nor is any after it."""
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel(agreement=0.9))
    whole = target.answer

    def cut(known: Any, opening: Any, step: Any) -> Verification:
        found = whole(known, opening, step)
        num_positions = 1 + target.num_steps % 4
        return Verification(
            found.step_id, found.choices[:num_positions], found.entropies[:num_positions], times=found.times
        )

    async with running(model, [target], [drafter]) as rig:
        expected = ids(await rig.generate(PLAIN))
        target.answer = cut  # type: ignore[method-assign]
        answer = await rig.generate(EXACT)
    assert ids(answer) == expected and not answer.warnings
    assert answer.statistics.accepted > 0
