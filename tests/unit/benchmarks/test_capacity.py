"""The comparison of a drafter tier with co-located drafters: its report, and a link with a delay."""

import asyncio
import json
import math
import time
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.harness.client import Block
from benchmarks.harness.link import delayed_link
from benchmarks.harness.load import Window
from benchmarks.harness.machine import this_machine
from benchmarks.scenarios.capacity.hardware import H200, LLAMA_8B, LLAMA_70B, Replica
from benchmarks.scenarios.capacity.measure import Measured
from benchmarks.scenarios.capacity.plan import CO_LOCATED, FLY, PLAIN, Plan
from benchmarks.scenarios.capacity.report import (
    Found,
    closed_form,
    is_flagged,
    lockstep_tokens_per_s,
    make_report,
    served,
    size_rows,
)

PLAN = Plan()
RATES = {CO_LOCATED: 100.0, "tier, 0 ms": 160.0, "tier, 1 ms": 120.0, "tier, 10 ms": 50.0}


def measured(
    rate: float, outside: float = 0.0, targets: int = 0, setting: str = "", late: float = 0.01
) -> Measured:
    """Ten real seconds at a dilation of 20: half a simulated one."""
    window = Window(setting, 1, 0, round(rate / 2), 10.0, (2.0,), ((0.4, 1), (0.8, 4)), 3, 30, 6)
    return Measured(window, 20.0, 7.0, late, outside, PLAN.deployment(targets) if targets else None)


def found(outside: float = 0.0) -> Found:
    """Four clients have the rates above; sixteen twice as much from the tier, thrice from the pairs."""
    few = {name: measured(rate, outside) for name, rate in RATES.items()}
    more = {name: measured(rate * (3 if name == CO_LOCATED else 2), outside) for name, rate in RATES.items()}
    return Found({4: [few] * 3, 16: [more] * 3})


def test_points_are_compared_with_co_located_pairs_and_the_losing_ones_come_first(tmp_path: Path) -> None:
    path = make_report(PLAN, this_machine(), found()).write(tmp_path, tmp_path)
    page = path.read_text(encoding="utf-8")
    losing = page[page.index("Where the tier loses") : page.index("The best and")]
    assert losing.index("| 16 | tier, 10 ms |") < losing.index("| 4 | tier, 10 ms |")
    assert "| 4 | tier, 0 ms |" not in losing and losing.count("| 0.50x | 0.50 to 0.50 |") == 1
    best, worst = json.loads((tmp_path / "capacity.json").read_text())["goals"]
    assert "best point, 4 clients, tier, 0 ms" in best["name"]
    assert (best["measured"]["value"], best["limit"], best["verdict"]) == (1.6, 1.5, "met")
    assert "worst point, 16 clients, tier, 10 ms" in worst["name"]
    assert worst["measured"]["value"] == pytest.approx(1 / 3)
    assert "| co-located | less than 4 |" in page


def test_figures_that_the_cpu_distorts_are_flagged_but_a_delay_is_no_distortion(tmp_path: Path) -> None:
    make_report(PLAN, this_machine(), found(outside=0.2)).write(tmp_path, tmp_path)
    rows = json.loads((tmp_path / "capacity.json").read_text())["figures"]
    shares = {row["placement"]: row["distortion"] for row in rows if row["clients"] == 4}
    assert shares["tier, 0 ms"] == shares[CO_LOCATED] == pytest.approx(0.21)
    assert shares["tier, 1 ms"] == shares["tier, 10 ms"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("floor", "text"),
    [(130, "less than 1"), (125, "1"), (110, "3"), (100, "4"), (75, "10"), (50, "at least 16")],
)
def test_clients_served_lie_on_straight_lines_between_measured_numbers(floor: float, text: str) -> None:
    assert served([(1, 125.0), (4, 100.0), (16, 50.0)], floor) == text


def test_the_closed_form_is_that_of_the_literature() -> None:
    target, drafter = PLAN.models(2).target_model, PLAN.models(2).drafter_model
    one = 1 + 8 * drafter.forward_s(1, 1) / target.forward_s(1, 9)
    assert closed_form(PLAN, 1) == closed_form(PLAN, 4) == pytest.approx(one)
    assert closed_form(PLAN, 1000) < one, "verification is bound by compute, drafting is not"
    round_s = 8 * drafter.forward_s(4, 4) + target.forward_s(4, 36)
    assert lockstep_tokens_per_s(PLAN, 16, 7.0) == pytest.approx(16 * 7 / round_s)
    assert math.isclose(lockstep_tokens_per_s(PLAN, 1, 7.0) * round_s, 7.0, rel_tol=0.05)


async def test_a_link_delays_bytes_in_their_order_and_passes_the_end_on() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100_000):
            writer.write(data.upper())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, delayed_link(f"{host}:{port}", 0.05) as address:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        sent, started = b"".join(b"%d a " % number for number in range(50_000)), time.perf_counter()
        for start in range(0, len(sent), 10_000):
            writer.write(sent[start : start + 10_000])
        assert await reader.readexactly(len(sent)) == sent.upper()
        assert time.perf_counter() - started >= 0.1, "once each way"
        writer.close()
        assert await reader.read() == b""
        server.close()


async def test_a_link_to_nowhere_closes_its_connections() -> None:
    closed = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = closed.sockets[0].getsockname()[1]
    closed.close()
    async with delayed_link(f"127.0.0.1:{port}", 0.0) as address:
        reader, _ = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        assert await reader.read() == b""


async def test_a_link_that_ends_closes_its_connections() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        async with delayed_link(f"{host}:{port}", 60.0) as address:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
            writer.write(b"on its way")
            await writer.drain()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


def test_a_forward_costs_what_its_roofline_says() -> None:
    target, costs = Replica(LLAMA_70B, H200, 2, 2048), PLAN.models(1).target_model
    assert LLAMA_70B.kv_bytes == 320 * 1024 and LLAMA_8B.kv_bytes == 128 * 1024
    weights_s = 2 * 70.6e9 / (2 * 4.8e12 * 0.75)
    assert costs.forward_s(0, 1) == pytest.approx(weights_s + 0.3e-3 + 160 * 10e-6)
    assert costs.forward_s(0, target.knee_rows) == costs.forward_s(0, 1), "below the knee rows are free"
    above = costs.forward_s(0, 4 * target.knee_rows) - costs.forward_s(0, 1)
    assert above == pytest.approx(3 * weights_s, rel=0.02), "there compute takes as long as the weights"
    assert Plan(bandwidth_share=0.41).models(1).target.base_s > 1.7 * target.base_s


def test_deployments_are_compared_with_the_smallest_of_the_same_setting(tmp_path: Path) -> None:
    sizes = [measured(100 * n, targets=n, setting=name) for name in (PLAIN, FLY) for n in (1, 4, 64)]
    rows = size_rows(PLAN, sizes)
    assert [row.scaling for row in rows] == [1.0] * 6 and not any(map(is_flagged, rows))
    assert rows[0].inter_token.p50 == pytest.approx(0.01) and rows[0].gpu_s == 20.0 < rows[3].gpu_s
    slow = [*sizes[:-1], measured(100 * 64, 0.1, 64, FLY)]
    assert is_flagged(size_rows(PLAN, slow)[-1])
    assert is_flagged(size_rows(PLAN, [measured(100, late=0.06, targets=1)])[0])
    blocks = {PLAIN: [Block(PLAIN, 0.3, 9, 9, 0.0)], FLY: [Block(FLY, 0.09, 9, 1, 10.0)]}
    report = make_report(PLAN, this_machine(), Found(replicas=slow, router=blocks))
    page = report.write(tmp_path, tmp_path).read_text()
    assert f"{PLAIN}: 64 replicas, tokens/s by replica | >= 0.90x | 1.00x" in page and "10.1" not in page[:50]
    assert f"{FLY}: 64 replicas, tokens/s by replica (no verdict: the CPU was too slow)" in page
    assert "tau 10.0, by 0.1 ms | <= 1.00x | 0.90x" in page and (tmp_path / "capacity-replicas.svg").is_file()
