import asyncio
import io
import json
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from benchmarks.harness.load import (
    Ask,
    Level,
    Stream,
    Window,
    cut_window,
    interleave,
    run_window,
    send_at_rate,
)
from benchmarks.harness.machine import this_machine
from benchmarks.harness.statistics import Percentiles, percentiles
from benchmarks.harness.windows import measure_level, summarize
from benchmarks.scenarios.load.levels import (
    BASELINE,
    FIXED,
    SETTINGS,
    Plan,
    make_report,
    merged,
)
from flyserve.core.errors import Overloaded
from flyserve.core.response import Chunk, Statistics
from flyserve.core.types import FinishReason, Token, Verdict

PROMPTS = ((1,), (2,), (3,))
TOKEN = Token(7, Verdict.PLAIN, 7, 0.0)


def test_a_window_counts_what_came_between_its_ends() -> None:
    done = Statistics(rounds=4, drafted=20, emitted=9)
    streams = [
        Stream(0.5, [(0.9, 2), (1.0, 3), (1.5, 4)], done),
        Stream(1.2, [(1.7, 1), (2.0, 8)]),
        Stream(1.9),
    ]
    window = cut_window("plain", 2, 0, streams, 1.0, 2.0)
    assert (window.tokens, window.seconds, window.tokens_per_s) == (8, 1.0, 8.0)
    assert window.firsts_s == (0.5,), "a first token before the window does not count"
    assert window.gaps == ((0.1, 3), (0.5, 4))
    assert (window.completed, window.drafted, window.rounds) == (1, 20, 4)


def test_tokens_that_come_together_share_the_wait() -> None:
    assert percentiles([(1.0, 1)] * 98 + [(3.0, 1)] * 2) == Percentiles(1.0, 1.0, 3.0)
    assert percentiles([(0.1, 90), (2.0, 10)]) == Percentiles(0.1, 2.0, 2.0)
    assert percentiles([]) is None


def window(setting: str, level: int, repetition: int, tokens: int) -> Window:
    return Window(setting, level, repetition, tokens, 2.0, (0.25,), ((0.04, 4), (0.5, 1)), 1, 30, 4)


def windows() -> list[Window]:
    """The machine slows down by half in every repetition: no ratio sees it."""
    gains = {
        BASELINE: 1.0,
        "exact": 0.5,
        **dict.fromkeys(FIXED, 1.25),
        "FLy, fixed 15": 2.0,
    }
    return [
        window(setting, level, repetition, round(gain * level * 1024 / 2**repetition))
        for level in (1, 16)
        for repetition in range(3)
        for setting, gain in gains.items()
    ]


def test_ratios_are_to_plain_decoding_at_the_same_time() -> None:
    figures = {(each.concurrency, each.setting): each for each in summarize(windows(), lambda _: BASELINE)}
    assert list(figures) == [(level, setting) for level in (1, 16) for setting in SETTINGS]
    fixed = figures[16, "FLy, fixed 15"]
    assert (fixed.ratio.value, fixed.ratio.least, fixed.ratio.most) == (2.0, 2.0, 2.0)
    assert fixed.tokens_per_s.value == 2 * 16 * 512 / 2 and fixed.completed == 3
    assert fixed.draft_length == 7.5 and fixed.first == Percentiles(0.25, 0.25, 0.25)
    assert fixed.inter_token == Percentiles(0.01, 0.5, 0.5) and fixed.pause == Percentiles(0.04, 0.5, 0.5)


class Server:
    """Returns three tokens in two chunks, and records the requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[int], int]] = []
        self.at_once = self.most_at_once = 0
        self.broken_off = 0

    async def ask(self, prompt: Sequence[int], max_new_tokens: int) -> AsyncGenerator[Chunk, None]:
        self.asked.append((prompt, max_new_tokens))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        ended = False
        try:
            await asyncio.sleep(0.001)
            yield Chunk(text="ab", tokens=(TOKEN, TOKEN), request_id="r", prompt_tokens=1)
            await asyncio.sleep(0.001)
            statistics = Statistics(rounds=2, drafted=5)
            yield Chunk(text="c", tokens=(TOKEN,), finish_reason=FinishReason.LENGTH, statistics=statistics)
            ended = True
        finally:
            self.at_once -= 1
            self.broken_off += not ended


async def test_every_client_asks_one_thing_after_the_other_until_the_window_ends() -> None:
    server = Server()
    streams, begin_s, end_s = await run_window(server.ask, cycle(PROMPTS), Level(4, 0.02, 0.05))
    assert end_s - begin_s == pytest.approx(0.05)
    assert server.most_at_once == 4 and server.at_once == 0 and server.broken_off <= 4
    assert len(server.asked) == len(streams) >= 4
    assert [limit for _, limit in server.asked[:4]] == [30, 60, 90, 120], "out of step from the start"
    assert {limit for _, limit in server.asked[4:]} <= {512}
    assert [prompt for prompt, _ in server.asked[:4]] == [(1,), (2,), (3,), (1,)]
    found = cut_window("plain", 4, 0, streams, begin_s, end_s)
    assert found.tokens >= 3 * found.completed - 8 * 3 and found.drafted == 5 * found.completed


async def test_a_rejection_ends_the_window() -> None:
    async def reject(prompt: Sequence[int], max_new_tokens: int) -> AsyncGenerator[Chunk, None]:
        raise Overloaded("full", 1.0)
        yield

    with pytest.raises(Overloaded):
        await run_window(reject, cycle(PROMPTS), Level(2, 5.0, 5.0))


def test_settings_take_turns_and_their_first_windows_do_not_count() -> None:
    order: list[str] = []
    server, steps = Server(), list[int]()

    def ask_by(setting: str) -> Ask:
        order.append(setting)
        return server.ask

    in_turn = partial(interleave, advance=lambda: steps.append(1))
    with asyncio.Runner() as runner:
        measured = measure_level(tuple(SETTINGS), ask_by, Level(1, 0.0, 0.005), 2, PROMPTS, runner, in_turn)
    assert len(order) == len(steps) == 3 * len(SETTINGS)
    size = len(SETTINGS)
    turns = [order[at : at + size] for at in range(0, len(order), size)]
    assert all(set(turn) == set(SETTINGS) for turn in turns) and turns[2] == turns[1][::-1]
    assert sorted((w.repetition, w.setting) for w in measured) == sorted(
        (repetition, setting) for repetition in range(2) for setting in SETTINGS
    )


def test_the_report_holds_every_figure(tmp_path: Path) -> None:
    machine = this_machine()
    report = make_report(machine, Plan(), windows())
    text = report.write(tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "| FLy, fixed 15 | 512 | 256 to 1024 | 2.00x | 2.00 to 2.00 | 250.0 / 250.0 / 250.0 |" in text
    assert "## 16 concurrent requests" in text and machine.cpu in text
    data = json.loads((tmp_path / "load-levels.json").read_text())
    assert len(data["windows"]) == len(windows())
    for name in ("load-levels-ratio.svg", "load-levels-inter-token.svg"):
        assert f"({name})" in text
        assert ElementTree.fromstring((tmp_path / name).read_text()).tag.endswith("svg")
    stream = io.StringIO()
    for table in report.tables:
        Console(file=stream, width=80).print(table.rich())
    assert "FLy, fixed 15" in stream.getvalue() and "…" not in stream.getvalue(), "it fits a terminal"
    titles = [table.title for table in report.tables]
    assert titles == ["One request at a time", "16 concurrent requests"]


async def test_requests_are_sent_at_their_rate() -> None:
    sent: list[float] = []

    async def send() -> None:
        sent.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.03)

    begun = asyncio.get_running_loop().time()
    await send_at_rate(send, 100.0, 0.1)
    assert len(sent) == 10 and sent[-1] - begun >= 0.08, "whether or not responses arrive"


def test_another_deployment_differs_in_the_named_keys_alone() -> None:
    keys = {"router": {"http_port": 0, "balancing": "round_robin"}, "target": {"replicas": 2}}
    others = {"router": {"balancing": "least_load"}, "telemetry": {"metrics_port": 0}}
    assert merged(keys, others) == {
        "router": {"http_port": 0, "balancing": "least_load"},
        "target": {"replicas": 2},
        "telemetry": {"metrics_port": 0},
    }
    assert keys["router"]["balancing"] == "round_robin"
