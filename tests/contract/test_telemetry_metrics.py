"""Metrics scraped over real sockets agree with what the responses report."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.core.errors import ConfigError
from flyserve.v1 import generation_pb2 as pb
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.process import Telemetry
from tests.contract.router_rig import EXACT, FLY, PLAIN, Answer, make_request
from tests.contract.telemetry_rig import TARGET, fetch, running_with_telemetry

METRICS = {"metrics_port": 0}
VERDICTS = {"VERDICT_EXACT": "exact", "VERDICT_RESCUED": "rescued", "VERDICT_CORRECTED": "corrected"}
VERDICTS |= {"VERDICT_BONUS": "bonus", "VERDICT_PLAIN": "plain"}


def total(answers: list[Answer], field: str) -> float:
    return sum(getattr(answer.statistics, field) for answer in answers)


async def test_the_metrics_agree_with_the_responses(model: Path) -> None:
    # NOTE: a draft that comes too late is counted by its drafter alone, so every round waits for its own.
    async with running_with_telemetry(model, METRICS, draft_patience=1e6) as rig:
        answers = [await rig.generate(mode, 60) for mode in (FLY, EXACT, FLY)]
        plain = await rig.generate(PLAIN, 20)
        router, target, drafter = [await rig.scrape(role) for role in ("router", "target", "drafter")]
        sub_drafter = await rig.scrape("sub_drafter")
    everything = [*answers, plain]
    assert router("flyserve_requests_total", outcome="ok") == 4
    assert router("flyserve_requests_active") == 0
    assert router("flyserve_responses_total", mode="fly", finish_reason="length") == 2
    assert router("flyserve_tokens_total") == total(everything, "emitted") == 200
    assert router("flyserve_goodput_tokens_total", mode="plain") == 20
    verdicts = Counter(VERDICTS[pb.Verdict.Name(t.verdict)] for answer in everything for t in answer.tokens)
    for verdict, number in verdicts.items():
        assert router("flyserve_tokens_total", verdict=verdict) == number
    assert router("flyserve_rounds_total") == total(everything, "rounds")
    assert router("flyserve_draft_length_tokens_sum") == total(everything, "drafted")
    assert router("flyserve_rounds_carried_total") == total(everything, "carried")
    assert router("flyserve_prompt_tokens_total") == 4 * len(make_request(FLY).prompt_token_ids.ids)
    assert router("flyserve_wire_bytes_total") == total(everything, "wire_bytes")
    assert router("flyserve_time_to_first_token_seconds_count") == 4
    assert router("flyserve_time_to_first_token_seconds_sum") == pytest.approx(
        total(everything, "time_to_first_token_s")
    )
    assert router("flyserve_replicas", role="target") == 1
    rejected = ("rejected_by_gate", "rejected_by_window", "rejected_by_tail", "rejected_by_guard")
    assert router("flyserve_rejections_total", mode="fly") == sum(
        total([answers[0], answers[2]], field) for field in rejected
    )
    assert router("flyserve_round_phase_seconds_count", phase="verify") == total(everything, "rounds")
    assert target("flyserve_step_seconds_count") == total(everything, "rounds")
    assert target("flyserve_verified_positions_total") == total(everything, "rounds") + total(
        everything, "drafted"
    )
    assert drafter("flyserve_drafted_tokens_sum") >= total(everything, "drafted")
    assert drafter("flyserve_draft_forwards_total") == total(everything, "drafter_forwards")
    assert drafter("flyserve_sub_drafter_tokens_total") >= total(everything, "sub_drafter_tokens")
    assert (
        drafter("flyserve_proposals_total", outcome="requested")
        == total(everything, "proposals_requested")
        > 0
    )
    assert sub_drafter("flyserve_step_seconds_count") > 0
    assert target("flyserve_kv_capacity_tokens") == 65536
    assert target("flyserve_build_info", role="target", replica="target-0", deployment="mine") == 1
    assert router("flyserve_build_info", role="router", replica="router-0", deployment="mine") == 1
    assert target("process_cpu_seconds_total") > 0


async def test_the_tasks_of_the_event_loop_are_counted(model: Path) -> None:
    async with running_with_telemetry(model, METRICS) as rig:
        before = (await rig.scrape("target"))("flyserve_event_loop_tasks")
        waiting = [asyncio.create_task(asyncio.sleep(60)) for _ in range(50)]
        after = (await rig.scrape("target"))("flyserve_event_loop_tasks")
        for task in waiting:
            task.cancel()
    assert after - before == pytest.approx(50, abs=5)


def plain_outcomes(router: Any) -> dict[str, float]:
    """Return the number of requests in mode plain by their outcome."""
    found = {s.labels["outcome"] for s in router.samples if s.name == "flyserve_requests_total"}
    outcomes = found - {"invalid_request"}
    return {each: router("flyserve_requests_total", mode="plain", outcome=each) for each in outcomes}


async def test_failed_requests_are_counted_by_the_kind_of_error(model: Path) -> None:
    slow = {**TARGET, "base_s": 0.2}
    async with running_with_telemetry(model, METRICS, target=slow) as rig:
        await rig.rejection(prompt="hello", max_new_tokens=1 << 30)
        call = rig.stub.Generate(make_request(PLAIN, 60))
        while (await rig.scrape("router"))("flyserve_requests_active") == 0:
            pass
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        router = await rig.scrape("router")
        # NOTE: a busy router may not begin a request in time, and counts one after its client has its error.
        while sum(plain_outcomes(router).values()) < 2 or router("flyserve_requests_active"):
            with pytest.raises(grpc.aio.AioRpcError):
                await rig.stub.Generate(make_request(PLAIN, 60), timeout=1.0)
            router = await rig.scrape("router")
    assert router("flyserve_requests_total", mode="unknown", outcome="invalid_request") == 1
    ended = plain_outcomes(router)
    assert ended.pop("ok") == 0
    assert sum(ended.values()) >= 2 and ended.keys() <= {"cancelled", "deadline_exceeded"}


async def test_metrics_are_served_on_loopback_until_the_process_ends(model: Path) -> None:
    async with running_with_telemetry(model, METRICS) as rig:
        addresses = [host.telemetry.metrics_address for host in rig.hosts.values()]
        assert all(address.startswith("127.0.0.1:") for address in addresses)
    for address in addresses:
        with pytest.raises(OSError):
            await asyncio.to_thread(fetch, address)


async def test_without_a_port_nothing_is_served(model: Path) -> None:
    async with running_with_telemetry(model, {}) as rig:
        await rig.generate(FLY, 20)
        assert {host.telemetry.metrics_address for host in rig.hosts.values()} == {""}


async def test_a_replacement_serves_its_metrics_once_the_port_is_free() -> None:
    first = Telemetry(TelemetryConfig(metrics_port=0, replica="first"), "target")
    first.start("127.0.0.1")
    port = int(first.metrics_address.rpartition(":")[2])
    config = TelemetryConfig(metrics_port=port, replica="second", waits_for_port=True)
    second, third = Telemetry(config, "target"), Telemetry(config, "target")
    second.start("127.0.0.1")
    assert not second.metrics_address
    await first.close()
    async with asyncio.timeout(240):
        while not second.metrics_address:
            await asyncio.sleep(0.01)
    assert 'replica="second"' in await asyncio.to_thread(fetch, second.metrics_address)
    third.start("127.0.0.1")
    await third.close()
    await second.close()


async def test_a_port_in_use_is_one_line() -> None:
    def telemetry(port: int) -> Telemetry:
        return Telemetry(TelemetryConfig(metrics_port=port), "target")

    first = telemetry(0)
    first.start("127.0.0.1")
    port: Any = first.metrics_address.rpartition(":")[2]
    with pytest.raises(ConfigError, match=f"telemetry.metrics_port: 127.0.0.1:{port} cannot be bound"):
        telemetry(int(port)).start("127.0.0.1")
    await first.close()
