"""Docker or Podman as tests use it: containers run as in the chart, without rights on a read-only root."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

ROOT = Path(__file__).parents[2]
HANG_S = 3600.0
"""Ends what hangs; no test is judged by it."""
WITHOUT_RIGHTS = (
    *("--read-only", "--tmpfs", "/tmp"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--shm-size", "1g"),
)


class Failed(Exception):
    """A command ended with an error; the message is its output."""


class Engine:
    """A container engine, by its command."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build(self, device: str) -> str:
        """Build an image as `make images` does; return its name."""
        place = {"REPOSITORY": "localhost/flyserve-test", "TAG": "test"}
        self._run("tools/images.sh", device, environment=place)
        return "localhost/flyserve-test:test" + ("" if device == "cpu" else f"-{device}")

    def run(self, image: str, *command: str) -> str:
        """Run a command in a container; return what it prints."""
        return self._run(self.name, "run", "--rm", *WITHOUT_RIGHTS, image, *command)

    def size(self, image: str) -> int:
        """Return the bytes of an image."""
        return int(json.loads(self._run(self.name, "image", "inspect", image))[0]["Size"])

    @contextmanager
    def running(self, image: str, *command: str) -> Iterator[str]:
        """Yield the name of a container that runs a command, and remove it."""
        name = f"flyserve-test-{uuid4().hex[:8]}"
        self._run(self.name, "run", "--detach", "--name", name, *WITHOUT_RIGHTS, image, *command)
        try:
            yield name
        finally:
            self._run(self.name, "rm", "--force", name)

    def execute(self, container: str, *command: str) -> str:
        """Run a command in a running container."""
        return self._run(self.name, "exec", container, *command)

    def stopped(self, container: str, grace_s: int) -> int:
        """Stop a container by SIGTERM; return its exit status: 137 if it was killed after the grace."""
        self._run(self.name, "stop", "-t", str(grace_s), container)
        return int(json.loads(self._run(self.name, "inspect", container))[0]["State"]["ExitCode"])

    def _run(self, *words: str, environment: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        if done.returncode:
            raise Failed(
                f"{' '.join(words[:6])}: {done.stderr.strip()[-3000:] or done.stdout.strip()[-3000:]}"
            )
        return done.stdout
