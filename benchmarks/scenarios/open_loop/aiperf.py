"""NVIDIA's AIPerf as the client: its command, and its summary of a run."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

from benchmarks.harness.system import DEMO_MODELS
from flyserve.bench.tasks import load_tasks, render
from flyserve.core.errors import ConfigError, NotReady

VARIABLE = "AIPERF"
_MAX_NEW_TOKENS = 512
_TIMEOUT_S = 600.0
Export = dict[str, Any]
"""AIPerf's `profile_export_aiperf.json`: statistics by the name of the figure; times in milliseconds."""


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


class Aiperf:
    """The program, sending greedy and streamed chats to one model."""

    def __init__(self, program: str, url: str, first_ms: float, token_ms: float) -> None:
        """Judge responses by their time to the first token, and the mean time of each token after it."""
        goodput = f"time_to_first_token:{first_ms:g} inter_token_latency:{token_ms:g}"
        self._command = [
            *(program, "profile", "--model", _served_model(url), "--url", url, "--endpoint-type", "chat"),
            *("--streaming", "--use-server-token-count", "--tokenizer", str(DEMO_MODELS / "target")),
            *("--goodput", goodput, "--ui", "none", "--no-auto-plot", "--custom-dataset-type", "single_turn"),
        ]

    def run(self, speculation: Mapping[str, Any], count: int, seed: int, *flags: str) -> Export:
        """Send `count` requests, under a cache salt of their own; the flags set how many are open, or when.

        Raises:
            NotReady: AIPerf failed; the message has its last lines.
        """
        fields = {"temperature": 0, "max_tokens": _MAX_NEW_TOKENS, "speculation": speculation}
        fields["cache_salt"] = uuid4().hex  # nothing of earlier runs is cached or remembered
        texts = islice(cycle(render(task.prompt) for task in load_tasks()), count)
        with TemporaryDirectory(prefix="flyserve-") as name:
            folder = Path(name)
            prompts = folder / "prompts.jsonl"
            prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
            command = [*self._command, *flags, "--input-file", str(prompts), "--request-count", str(count)]
            command += ["--random-seed", str(seed), "--extra-inputs", json.dumps(fields)]
            _call([*command, "--output-artifact-dir", str(folder / "out")], folder)
            export = folder / "out" / "profile_export_aiperf.json"
            found: Export = json.loads(export.read_text("utf-8"))
            return found


def _served_model(url: str) -> str:
    """Return the name of the model behind an HTTP API."""
    with urlopen(f"{url}/v1/models", timeout=_TIMEOUT_S) as response:
        return str(json.load(response)["data"][0]["id"])


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
