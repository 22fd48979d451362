"""Requests that arrive at a rate, sent and judged by NVIDIA's AIPerf over the HTTP API (about 12 minutes)."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from urllib.request import urlopen

from pydantic import Field

from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.deployed import demo_with_room, deployed
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import median_ratio, spread
from benchmarks.harness.system import DEMO_MODELS
from fly.errors import ConfigError, NotReady
from flyserve.bench.tasks import load_tasks, render
from router.config import HttpConfig

VARIABLE = "AIPERF"
DRAFT_LENGTH = 15
BASELINE, FLY = "plain", f"FLy, drafts of {DRAFT_LENGTH}"
_SHOWN = ("setting", "response p50, s", "times as fast as plain", "acceptance length")
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    BASELINE: {"mode": "plain"},
    FLY: {"mode": "fly", "draft_length": DRAFT_LENGTH},
}
"""The field `speculation` of the requests, by the name of the setting."""
_ROOM, _MAX_NEW_TOKENS, _SEED = 32, 512, 1
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        rates: Requests per second, on average; they arrive as a Poisson process.
        seconds: Time of a run: a rate times this gives its number of requests.
        repeat: Runs of every setting at every rate.
    """

    rates: Annotated[tuple[float, ...], Field(min_length=1), Quick((2.0,))] = (0.5, 1.0, 2.0)
    seconds: Annotated[float, Field(gt=0), Quick(4.0)] = 40.0
    repeat: Annotated[int, Quick(1)] = 2

    def requests(self, rate: float) -> int:
        """Number of requests of a run."""
        return max(2, round(rate * self.seconds))


@dataclass(frozen=True, slots=True)
class Run:
    """AIPerf's summary of one run.

    Attributes:
        requests: Responses that were complete.
        failed: Share of the requests that failed, in percent.
        tokens_per_s: Output tokens of all users.
        latency_s, latency_p95_s: Time of a whole response, median and 95th percentile.
        first_s, first_p95_s: Time to the first token.
        acceptance_length: Tokens per round with a draft, over all rounds; None without drafts.
    """

    requests: int
    failed: float
    tokens_per_s: float
    latency_s: float
    latency_p95_s: float
    first_s: float
    first_p95_s: float
    acceptance_length: float | None

    @classmethod
    def of(cls, export: Mapping[str, Any]) -> "Run":
        """Read AIPerf's `profile_export_aiperf.json`."""
        latency, first = export["request_latency"], export["time_to_first_token"]
        length = export.get("spec_decode_token_weighted_acceptance_length")
        return cls(
            requests=round(export["request_count"]["avg"]),
            failed=export.get("request_error_rate", {"avg": 0.0})["avg"],
            tokens_per_s=export["output_token_throughput"]["avg"],
            latency_s=latency["p50"] / 1e3,
            latency_p95_s=latency["p95"] / 1e3,
            first_s=first["p50"] / 1e3,
            first_p95_s=first["p95"] / 1e3,
            acceptance_length=length and length["avg"],
        )


def aiperf_program(environment: Mapping[str, str] = os.environ) -> str:
    """Return the program that the variable `AIPERF` names.

    Raises:
        ConfigError: The variable is not set, or names no program.
    """
    program = environment.get(VARIABLE, "")
    if not os.access(program, os.X_OK) or not program:
        found = f"is {program!r}, which is not a program" if program else "is not set"
        raise ConfigError(f"{VARIABLE}: {found}; name the program aiperf, as `make test-tools` installs it")
    return program


def profile(
    program: str, url: str, model: str, speculation: Mapping[str, Any], rate: float, count: int
) -> Run:
    """Let AIPerf send `count` requests at a rate, and return its summary.

    Raises:
        NotReady: AIPerf failed; the message has its last lines.
    """
    fields = {"temperature": 0, "max_tokens": _MAX_NEW_TOKENS, "speculation": speculation}
    with TemporaryDirectory(prefix="flyserve-") as name:
        folder = Path(name)
        prompts = folder / "prompts.jsonl"
        texts = [render(task.prompt) for task in load_tasks(count)]
        prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        command = [program, "profile", "--model", model, "--url", url, "--endpoint-type", "chat"]
        command += ["--streaming", "--use-server-token-count", "--tokenizer", str(DEMO_MODELS / "target")]
        command += ["--input-file", str(prompts), "--custom-dataset-type", "single_turn"]
        command += ["--request-rate", str(rate), "--arrival-pattern", "poisson", "--random-seed", str(_SEED)]
        command += ["--request-count", str(count), "--warmup-request-count", "2"]
        command += ["--extra-inputs", json.dumps(fields), "--output-artifact-dir", str(folder / "out")]
        _call([*command, "--ui", "none", "--no-auto-plot"], folder)
        return Run.of(json.loads((folder / "out" / "profile_export_aiperf.json").read_text("utf-8")))


def _call(command: Sequence[str], folder: Path) -> None:
    # NOTE: AIPerf loads a tokenizer's folder only if the hub's offline switch is not set.
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise NotReady(f"AIPerf did not end within {_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise NotReady("\n".join([f"AIPerf ended with {done.returncode}:", *(_first_error(folder) or lines)]))


def _first_error(folder: Path) -> list[str]:
    """Return the error of the first request that failed, if AIPerf recorded one."""
    record = folder / "out" / "profile_export.jsonl"
    lines = record.read_text("utf-8").splitlines() if record.is_file() else []
    errors = (json.loads(line).get("error") for line in lines)
    return [str(error.get("message", error)) for error in errors if error][:1]


def _served_model(url: str) -> str:
    with urlopen(f"{url}/v1/models", timeout=_TIMEOUT_S) as response:
        return str(json.load(response)["data"][0]["id"])


Runs = dict[str, list[Run]]
"""Runs at one rate, by setting."""


def run(plan: Plan, context: Context) -> Report:
    """Measure every rate, the settings in turn."""
    program, found = aiperf_program(), dict[float, Runs]()
    demo = demo_with_room(_ROOM, HttpConfig(speculation_metrics=True))
    with deployed(demo, "the demo's services", context.verbose) as running:
        url = running.http_url or ""
        for rate in plan.rates:
            measure = partial(_measure, program, url, _served_model(url), rate, plan, context)
            found[rate] = context.parts.measure(f"{rate:g}-per-s", Runs, measure)
    return make_report(plan, context, found)


def _measure(program: str, url: str, model: str, rate: float, plan: Plan, context: Context) -> Runs:
    def send(setting: str, turn: int) -> Run:
        return profile(program, url, model, SETTINGS[setting], rate, plan.requests(rate))

    return context.interleave(f"{rate:g} requests/s", tuple(SETTINGS), plan.repeat, send, warm_ups=0)


Compared = tuple[float, str, Sequence[Run], Sequence[Run]]
"""A rate, a setting, its runs, and those of plain decoding."""


def _spread(name: str, scale: float, head: str, form: str) -> Figure[Compared]:
    return Figure(
        name,
        lambda c: spread([scale * getattr(each, name) for each in c[2]]),
        {head: f"{{.value:{form}}}"},
    )


FIGURES: tuple[Figure[Compared], ...] = (
    Figure("rate", lambda c: c[0], {"requests/s": "{:g}"}),
    Figure("setting", lambda c: c[1], {"setting": "{}"}),
    Figure("requests", lambda c: sum(each.requests for each in c[2]), {"responses": "{}"}),
    Figure("failed", lambda c: max(each.failed for each in c[2]), {"failed": "{:g}%"}),
    _spread("latency_s", 1, "response p50, s", ".2f"),
    Figure(
        "by_plain",
        lambda c: median_ratio([each.latency_s for each in c[3]], [each.latency_s for each in c[2]]),
        {"times as fast as plain": TIMES, "95% interval": AROUND},
    ),
    _spread("latency_p95_s", 1, "response p95, s", ".2f"),
    _spread("first_s", 1e3, "first token p50, ms", ".0f"),
    _spread("first_p95_s", 1e3, "first token p95, ms", ".0f"),
    _spread("tokens_per_s", 1, "tokens/s", ".0f"),
    Figure(
        "acceptance_length",
        lambda c: next((each.acceptance_length for each in c[2]), None),
        {"acceptance length": "{:.2f}"},
    ),
)


def make_report(plan: Plan, context: Context, found: Mapping[float, Runs]) -> Report:
    """Return the report of the rates that were measured."""
    rows = make_rows(FIGURES, _compared(found))
    return Report("open_loop", context.machine, plan, figures=rows, runs=found).fill(
        machine=context.machine,
        room=_ROOM,
        table_of_rates=Table.of("requests that arrive at a rate", FIGURES, rows),
        shown=_SHOWN,
        svg=_chart(rows),
    )


def _compared(found: Mapping[float, Runs]) -> Iterator[Compared]:
    for rate, runs in found.items():
        for setting, own in runs.items():
            yield rate, setting, own, runs[BASELINE]


def _chart(rows: Sequence[Row]) -> str:
    lines = {
        setting: [(row.rate, row.latency_s.value) for row in rows if row.setting == setting]
        for setting in SETTINGS
    }
    return line_chart("Time of a whole response, median", "requests per second", "seconds", lines, True)
