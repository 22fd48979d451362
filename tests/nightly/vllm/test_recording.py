"""The recorded exchanges are still what vLLM answers."""

import os
import subprocess

from tests.nightly.vllm.vllm_rig import vllm_python
from tests.support.processes import ROOT


def test_the_recording_has_not_drifted() -> None:
    command = [vllm_python(), "-m", "tools.record_vllm", "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0 and "as recorded" in ended.stdout, ended.stderr[-2000:]
