"""Applies a deployment from outside its Ray cluster: as a job that the cluster's head runs."""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fly.errors import ConfigError, NotReady, Unauthenticated
from orchestration.deployment.file import Deployment
from services.common.config import load_yaml

_POLL_S = 1.0
_ERROR = "error: "


def apply_as_job(url: str, file: Path, timeout_s: float, tell: Callable[[str], None]) -> None:
    """Has the head run `flyserve apply` on a deployment file, and waits for its end.

    The file travels in the command: what is mounted on the head may be older.

    Args:
        url: Of Ray's dashboard, such as `http://head:8265`.
        file: The deployment file.
        timeout_s: Within which the dashboard must be there and the job must end.
        tell: Is told what the job says.

    Raises:
        ConfigError: The file breaks a limit, the head rejects it, or Ray's part for jobs is not installed.
        NotReady: There is no dashboard in time, or the job does not end in time.
        Unauthenticated: The dashboard does not take the token.
    """
    load_yaml(Deployment, file)
    text = file.read_text(encoding="utf-8")
    deadline = time.monotonic() + timeout_s
    client, job = _submitted(url, _command(text, timeout_s), deadline)
    status = _end_of(client, url, job, deadline)
    with _explained(url):
        log = client.get_job_logs(job)
    tell(log.rstrip())
    if not status.is_terminal():
        raise NotReady(f"{url}: the job {job} did not end within {timeout_s:.0f} s")
    if status != "SUCCEEDED":
        raise ConfigError(_last_words(log) or f"the job {job} ended as {status}")


def _end_of(client: Any, url: str, job: str, deadline: float) -> Any:
    """The status of a job that has ended, or has not in time."""
    while True:
        with _explained(url):
            status = client.get_job_status(job)
        if status.is_terminal() or time.monotonic() > deadline:
            return status
        time.sleep(_POLL_S)


def _command(text: str, timeout_s: float) -> str:
    apply = f"flyserve apply /dev/stdin --replace --timeout-s {timeout_s:g}"
    return f"printf %s {shlex.quote(text)} | {apply}"


def _submitted(url: str, command: str, deadline: float) -> tuple[Any, str]:
    """A client of the dashboard and the job, as soon as the dashboard and its agent are there."""
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise ConfigError("Ray is not installed: install FlyServe with its extra cluster") from None
    while True:
        try:
            with _explained(url):
                client = JobSubmissionClient(url)
                return client, client.submit_job(entrypoint=command)
        except NotReady:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    """Ray's errors as ours."""
    try:
        yield
    except ConnectionError:
        raise NotReady(f"{url}: Ray's dashboard does not answer") from None
    except RuntimeError as error:
        words = " ".join(str(error).split())
        if "ray[default]" in words:
            raise ConfigError(
                "Ray's jobs are not installed: install FlyServe with its extra cluster"
            ) from None
        if "401" in words or "403" in words:
            raise Unauthenticated(f"{url}: Ray's dashboard does not take RAY_AUTH_TOKEN") from None
        raise NotReady(f"{url}: {words}") from None


def _last_words(log: str) -> str:
    lines = [line for line in log.splitlines() if line.startswith(_ERROR)]
    return lines[-1].removeprefix(_ERROR) if lines else ""
