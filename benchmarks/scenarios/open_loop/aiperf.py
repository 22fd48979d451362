"""NVIDIA's AIPerf as the client: its command, and its summary of a run."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from urllib.request import urlopen

from benchmarks.harness.system import DEMO_MODELS
from fly.errors import ConfigError, NotReady
from flyserve.bench.tasks import load_tasks, render

VARIABLE = "AIPERF"
_MAX_NEW_TOKENS, _SEED = 512, 1
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Promise:
    """The latencies that a good response keeps.

    Attributes:
        first_ms: Time to the first token.
        token_ms: Mean time of each token after it.
    """

    first_ms: float
    token_ms: float

    @property
    def option(self) -> str:
        """Value of AIPerf's option `--goodput`."""
        return f"time_to_first_token:{self.first_ms:g} inter_token_latency:{self.token_ms:g}"


@dataclass(frozen=True, slots=True)
class Run:
    """AIPerf's summary of one run.

    Attributes:
        requests: Responses that were complete.
        failed: Share of the requests that failed, in percent.
        requests_per_s: Complete responses per second.
        tokens_per_s: Output tokens of all users.
        latency_s, latency_p95_s: Time of a whole response, median and 95th percentile.
        first_s, first_p95_s: Time to the first token.
        token_p99_s: Time per token after the first one, a mean per response; its 99th percentile.
        good: Share of the complete responses that keep the promise.
        acceptance_length: Tokens per round with a draft, over all rounds; None without drafts.
    """

    requests: int
    failed: float
    requests_per_s: float
    tokens_per_s: float
    latency_s: float
    latency_p95_s: float
    first_s: float
    first_p95_s: float
    token_p99_s: float
    good: float
    acceptance_length: float | None

    @classmethod
    def of(cls, export: Mapping[str, Any]) -> Self:
        """Read AIPerf's `profile_export_aiperf.json`."""
        latency, first = export["request_latency"], export["time_to_first_token"]
        length = export.get("spec_decode_token_weighted_acceptance_length")
        count = export["request_count"]["avg"]
        return cls(
            requests=round(count),
            failed=export.get("request_error_rate", {"avg": 0.0})["avg"],
            requests_per_s=export["request_throughput"]["avg"],
            tokens_per_s=export["output_token_throughput"]["avg"],
            latency_s=latency["p50"] / 1e3,
            latency_p95_s=latency["p95"] / 1e3,
            first_s=first["p50"] / 1e3,
            first_p95_s=first["p95"] / 1e3,
            token_p99_s=export["inter_token_latency"]["p99"] / 1e3,
            good=export["good_request_count"]["avg"] / count,
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


def served_model(url: str) -> str:
    """Return the name of the model behind an HTTP API."""
    with urlopen(f"{url}/v1/models", timeout=_TIMEOUT_S) as response:
        return str(json.load(response)["data"][0]["id"])


class Aiperf:
    """The program, sending greedy and streamed chats to one model."""

    def __init__(self, program: str, url: str, model: str, promise: Promise) -> None:
        self._command = [
            *(program, "profile", "--model", model, "--url", url, "--endpoint-type", "chat", "--streaming"),
            *("--use-server-token-count", "--tokenizer", str(DEMO_MODELS / "target")),
            *("--goodput", promise.option, "--random-seed", str(_SEED)),
            *("--ui", "none", "--no-auto-plot"),
        ]

    def follow(self, speculation: Mapping[str, Any], times_s: Sequence[float]) -> Run:
        """Send requests at these times, whether or not earlier ones have ended.

        Raises:
            NotReady: AIPerf failed; the message has its last lines.
        """
        entries = (
            {"timestamp": round(1e3 * time), "text_input": text}
            for time, text in zip(times_s, cycle(_texts()), strict=False)
        )
        return self._run(speculation, "mooncake_trace", entries, "--fixed-schedule")

    def keep_open(self, speculation: Mapping[str, Any], callers: int, count: int) -> Run:
        """Send `count` requests, so many of them open at once; raises NotReady as `follow`."""
        entries = ({"text": text} for _, text in zip(range(count), cycle(_texts()), strict=False))
        size = ("--concurrency", str(callers), "--request-count", str(count), "--warmup-request-count", "2")
        return self._run(speculation, "single_turn", entries, *size)

    def _run(
        self, speculation: Mapping[str, Any], kind: str, entries: Iterable[Mapping[str, Any]], *flags: str
    ) -> Run:
        fields = {"temperature": 0, "max_tokens": _MAX_NEW_TOKENS, "speculation": speculation}
        with TemporaryDirectory(prefix="flyserve-") as name:
            folder = Path(name)
            prompts = folder / "prompts.jsonl"
            prompts.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
            command = [*self._command, "--input-file", str(prompts), "--custom-dataset-type", kind, *flags]
            command += ["--extra-inputs", json.dumps(fields), "--output-artifact-dir", str(folder / "out")]
            _call(command, folder)
            return Run.of(json.loads((folder / "out" / "profile_export_aiperf.json").read_text("utf-8")))


def _texts() -> list[str]:
    return [render(task.prompt) for task in load_tasks()]


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
