"""Apply a deployment from outside its Ray cluster, as a Ray job on the cluster's head."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flyserve.core.errors import ConfigError, NotReady, Unauthenticated, one_line
from orchestration.deployment.file import load_deployment

_POLL_S = 1.0
_FILE = "deployment.yaml"
_ERROR = "error: "


def apply_as_job(url: str, file: Path, timeout_s: float, show: Callable[[str], None]) -> None:
    """Run `flyserve apply` for a deployment file on the head, and wait for its end; `show` receives the log.

    The job gets the file with absolute paths, as found on this machine: a file that is mounted on the head
    may be older. It travels in the job's working directory, not in its command, which others can read. The
    head need not have the models: replicas and routers report a folder that they miss. `url` is that of Ray's
    dashboard, such as `http://head:8265`; `timeout_s` limits its answer and the job together.

    Raises:
        ConfigError: The file breaks a limit or names a relative path that does not exist, the head rejects
            it, or Ray's jobs are not installed.
        NotReady: The dashboard does not answer in time, or the job does not end in time.
        Unauthenticated: The dashboard does not accept the token.
    """
    load_deployment(file, has_models=False)  # a faulty one is reported at once
    # NOTE: without the variable, the actors that the job starts do not run in its working directory.
    options = f"--replace --remote-models --timeout-s {timeout_s:g}"
    command = f"env -u RAY_JOB_CONFIG_JSON_ENV_VAR flyserve apply {_FILE} {options}"
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory(prefix="flyserve-apply-") as folder:
        sent = Path(folder) / _FILE
        sent.touch(mode=0o600)  # NOTE: Ray keeps the mode where it unpacks the folder

        def write() -> None:
            made = load_deployment(file, has_models=False)
            sent.write_text(made.model_dump_json(exclude_unset=True), encoding="utf-8")

        client, job = _submitted(url, command, folder, write, deadline)
    status = _end_of(client, url, job, deadline)
    with _translated_errors(url):
        log = client.get_job_logs(job)
    show(log.rstrip())
    if not status.is_terminal():
        raise NotReady(f"{url}: the job {job} did not end within {timeout_s:.0f} s")
    if status != "SUCCEEDED":
        raise ConfigError(_last_error(log) or f"the job {job} ended as {status}")


def _end_of(client: Any, url: str, job: str, deadline: float) -> Any:
    """Return the status of a job at its end, or at the deadline."""
    while True:
        with _translated_errors(url):
            status = client.get_job_status(job)
        if status.is_terminal() or time.monotonic() > deadline:
            return status
        time.sleep(_POLL_S)


def _submitted(
    url: str, command: str, folder: str, write: Callable[[], None], deadline: float
) -> tuple[Any, str]:
    """Submit a job that runs in a copy of `folder`, as soon as the dashboard and its agent answer.

    `write` is called just before: a newer file may have been applied during the wait.

    Returns:
        A client and the job's id.
    """
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise ConfigError("Ray is not installed: install FlyServe with its extra cluster") from None
    while True:
        try:
            with _translated_errors(url):
                client = JobSubmissionClient(url)
                write()
                return client, client.submit_job(entrypoint=command, runtime_env={"working_dir": folder})
        except NotReady:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _translated_errors(url: str) -> Iterator[None]:
    """Translate Ray's errors into FlyServe's."""
    try:
        yield
    except ConnectionError:
        raise NotReady(f"{url}: Ray's dashboard does not answer") from None
    except RuntimeError as error:
        words = one_line(error)
        if "ray[default]" in words:
            raise ConfigError(
                "Ray's jobs are not installed: install FlyServe with its extra cluster"
            ) from None
        if "401" in words or "403" in words:
            raise Unauthenticated(f"{url}: Ray's dashboard does not accept RAY_AUTH_TOKEN") from None
        raise NotReady(f"{url}: {words}") from None


def _last_error(log: str) -> str:
    lines = [line for line in log.splitlines() if line.startswith(_ERROR)]
    return lines[-1].removeprefix(_ERROR) if lines else ""
