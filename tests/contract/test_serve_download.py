"""`flyserve serve` of a model of the hub: Ctrl-C while it is downloaded."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

from tests.support.fake_hub import fake_hub

_HANG_S = 240.0


def test_ctrl_c_during_a_download_does_not_wait_for_it(tmp_path: Path) -> None:
    """The hub sends no byte of the weights, so a command that waits for its threads would never end."""
    files = {"config.json": b"{}", "model.safetensors": b"0" * 64}
    with fake_hub(files) as hub:
        hub.stalls = Event()
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        command = (sys.executable, "-m", "flyserve", "serve", "org/name", "--port", "0", "--grpc-port", "0")
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                deadline = time.monotonic() + _HANG_S
                while "model.safetensors" not in hub.fetched and time.monotonic() < deadline:
                    time.sleep(0.05)
                process.send_signal(signal.SIGINT)
                _, printed = process.communicate(timeout=_HANG_S)
            finally:
                hub.stalls.set()
                process.kill()
    assert process.returncode == 130
    assert "stopping: received SIGINT" in printed
    assert "Traceback" not in printed
