"""The services' command lines with models that cannot be served: one line, exit status 2."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.tiny_models import change_config, make_tiny

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240


def rejection(command: Sequence[str]) -> str:
    """The one line that a bad start ends with."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


def test_a_model_that_cannot_be_served_is_one_line(tmp_path: Path) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    change_config(tmp_path, quantization_config={"quant_method": "gptq"})
    assert rejection(["-m", "services.target", "--model", str(tmp_path)]) == (
        f"error: {tmp_path}: llama quantized with gptq is not supported: use the unquantized weights"
    )


def test_a_hub_id_without_a_network_is_one_line(tmp_path: Path) -> None:
    expected = "error: org/absent@main is not on this machine, and the model hub cannot be reached"
    flags = ["--model", "org/absent@main", "--target", "127.0.0.1:1"]
    assert rejection(["-m", "router", *flags]).startswith(expected)


def test_a_deployment_of_a_hub_id_without_a_network_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(json.dumps({"target": {"model": "org/absent@main"}, "router": {"grpc_port": 0}}))
    line = rejection(["-c", "from flyserve.cli import main; main()", "up", str(file)])
    assert line.startswith("error: org/absent@main is not on this machine")
