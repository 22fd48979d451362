"""Apply a deployment from outside its Ray cluster, as a Ray job on the cluster's head."""

import contextlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from flyserve.core.errors import ConfigError, NotReady, one_line
from orchestration.deployment.file import load_deployment

T = TypeVar("T")

_POLL_S = 1.0
_ANSWER_S = 60.0
"""Longest wait for one answer of the dashboard, which itself waits for an agent."""
_LAST_ANSWER_S = 1.0
"""Wait for an answer when no time is left."""
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
            it, the dashboard does not accept the token, or Ray's jobs are not installed.
        NotReady: The dashboard does not answer in time, the job does not end in time, or it is gone.
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
    log = _answer_about(job, url, deadline, lambda: str(client.get_job_logs(job)))
    show(log.rstrip())
    if not status.is_terminal():
        raise NotReady(f"{url}: the job {job} did not end within {timeout_s:.0f} s")
    if status != "SUCCEEDED":
        raise ConfigError(_last_error(log) or f"the job {job} ended as {status}")


def _submitted(
    url: str, command: str, folder: str, write: Callable[[], None], deadline: float
) -> tuple[Any, str]:
    """Submit a job that runs in a copy of `folder`, as soon as the dashboard and its agent answer.

    `write` is called just before: a newer file may have been applied during the wait. All tries have one id:
    the connection may end when the job is accepted, before the answer.

    Returns:
        A client and the job's id.
    """
    create_client, job = _client_class(deadline), f"flyserve-{secrets.token_hex(8)}"

    def submit() -> tuple[Any, str]:
        client = create_client(url)
        write()
        with _accepted_before(job):
            client.submit_job(entrypoint=command, runtime_env={"working_dir": folder}, submission_id=job)
        return client, job

    return _answer(url, deadline, submit)


@contextlib.contextmanager
def _accepted_before(job: str) -> Iterator[None]:
    """Ignore the error of Ray's client for the id of a job that an earlier try has submitted."""
    try:
        yield
    except RuntimeError as error:
        if f"{job} already exists" not in str(error):
            raise


def _end_of(client: Any, url: str, job: str, deadline: float) -> Any:
    """Return the status of a job at its end, or at the deadline."""
    while True:
        status = _answer_about(job, url, deadline, lambda: client.get_job_status(job))
        if status.is_terminal() or time.monotonic() > deadline:
            return status
        time.sleep(_POLL_S)


def _client_class(deadline: float) -> Callable[[str], Any]:
    """Return Ray's client of its dashboard with a time limit for each request: Ray sets none."""
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise ConfigError("Ray is not installed: install FlyServe with its extra cluster") from None

    class Client(JobSubmissionClient):
        def _do_request(self, *arguments: Any, **options: Any) -> Any:
            limit_s = max(_LAST_ANSWER_S, min(_ANSWER_S, deadline - time.monotonic()))
            return super()._do_request(*arguments, timeout=limit_s, **options)

    return Client


def _answer(url: str, deadline: float, call: Callable[[], T]) -> T:
    """Return the result of a call to the dashboard; repeat a call that it does not answer until the deadline.

    NOTE: a head that restarts, or a proxy before it, refuses or ends connections for a while.
    """
    while True:
        try:
            with _translated_errors(url):
                return call()
        except NotReady:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _answer_about(job: str, url: str, deadline: float, call: Callable[[], T]) -> T:
    """Return the result of a call about a job; raise NotReady at once if the head does not know the job.

    NOTE: a head that has no storage of its own forgets its jobs when it restarts.
    """

    def answer() -> T | None:
        try:
            return call()
        except RuntimeError as error:
            if _is_unknown_job(str(error)):
                return None
            raise

    found = _answer(url, deadline, answer)
    if found is None:
        raise NotReady(f"{url}: the job {job} is gone, as after a restart of the head: apply it again")
    return found


def _is_unknown_job(words: str) -> bool:
    """Return True for Ray's own answer; a proxy may answer 404 as well, for a head that restarts."""
    return "status code 404" in words and "does not exist" in words


@contextlib.contextmanager
def _translated_errors(url: str) -> Iterator[None]:
    """Translate the errors of Ray's client, and of the HTTP client that it uses, into FlyServe's."""
    from ray.exceptions import AuthenticationError
    from requests.exceptions import HTTPError, RequestException

    try:
        yield
    except AuthenticationError:
        raise ConfigError(
            f"{url}: Ray's dashboard does not accept RAY_AUTH_TOKEN: set it to the token of the cluster's"
            " head, and RAY_AUTH_MODE to token"
        ) from None
    except HTTPError as error:
        raise NotReady(f"{url}: {one_line(error)}") from None
    except (ConnectionError, RequestException):
        raise NotReady(f"{url}: Ray's dashboard does not answer") from None
    except RuntimeError as error:
        words = one_line(error)
        if "ray[default]" in words:
            raise ConfigError(
                "Ray's jobs are not installed: install FlyServe with its extra cluster"
            ) from None
        raise NotReady(f"{url}: {words}") from None


def _last_error(log: str) -> str:
    lines = [line for line in log.splitlines() if line.startswith(_ERROR)]
    return lines[-1].removeprefix(_ERROR) if lines else ""
