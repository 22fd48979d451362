"""A deployment that is applied by a Ray job: what is sent; a dashboard that refuses, fails or is silent."""

import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from ray.job_submission import JobStatus

from flyserve.core.errors import ConfigError, NotReady
from orchestration.deployment.file import Deployment
from orchestration.ray import jobs
from orchestration.ray.jobs import apply_as_job
from services.common.config import load_yaml

ANSWERS: Mapping[str, Mapping[str, str]] = {
    "/api/version": {"ray_version": "2.60.0"},
    "/api/packages": {},
    "/api/jobs/": {"job_id": "01000000", "submission_id": "job"},
    "/api/jobs/job": {"type": "SUBMISSION", "status": "SUCCEEDED", "entrypoint": "flyserve apply"},
    "/api/jobs/job/logs": {"logs": "unchanged\n"},
}
"""Answers of Ray's dashboard to the requests of one job, by path."""
CLOSED = (0, "")
"""In the place of an answer: the connection is closed."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "deployment.yaml"
    (tmp_path / "somewhere").mkdir()
    path.write_text("target: {model: somewhere}")
    return path


def test_a_missing_dashboard_is_reported_in_time(file: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(NotReady, match=f"{url}: Ray's dashboard does not answer"):
            apply_as_job(url, file, timeout_s=0.1, show=print)


class Jobs:
    """Ray's jobs on a head whose dashboard answers at the second try; the file is edited meanwhile."""

    sent: ClassVar[list[Deployment]] = []
    file: ClassVar[Path]

    def __init__(self, url: str) -> None:
        before = self.file.read_text()
        self.file.write_text("target: {model: somewhere, max_sequences: 8}")
        if "max_sequences" not in before:
            raise ConnectionError

    def submit_job(self, entrypoint: str, runtime_env: dict[str, str], submission_id: str) -> str:
        self.sent.append(load_yaml(Deployment, Path(runtime_env["working_dir"]) / "deployment.yaml"))
        return submission_id

    def get_job_status(self, job: str) -> JobStatus:
        return JobStatus.SUCCEEDED

    def get_job_logs(self, job: str) -> str:
        return "unchanged"


def test_the_file_is_sent_as_it_is_when_the_dashboard_answers(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs, "file", file, raising=False)
    monkeypatch.setattr(Jobs, "sent", [])
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Jobs)
    monkeypatch.setattr(jobs, "_POLL_S", 0.0)
    shown: list[str] = []
    apply_as_job("http://head:8265", file, timeout_s=600, show=shown.append)
    assert shown == ["unchanged"]
    (sent,) = Jobs.sent
    assert (sent.target.max_sequences, sent.target.model) == (8, file.parent / "somewhere")


def test_a_faulty_file_is_rejected_before_anything_is_sent(file: Path) -> None:
    file.write_text("target: {modell: somewhere}")
    with pytest.raises(ConfigError, match=r"target\.modell: unknown key, did you mean 'model'"):
        apply_as_job("http://127.0.0.1:1", file, timeout_s=60, show=print)


@contextmanager
def dashboard(path: str, *faults: tuple[int, str]) -> Iterator[str]:
    """Serve one job as Ray's dashboard does; the first answers of a path are faults: statuses and texts.

    A job whose submission is not answered is accepted: a second one with its id is refused.
    """
    left, accepted = list(faults), set[str]()

    def refusal(body: bytes) -> tuple[int, str] | None:
        """Return the answer to a repeated submission, as Ray 2.60 words it."""
        if (job := json.loads(body)["submission_id"]) not in accepted:
            accepted.add(job)
            return None
        return 500, f"ValueError: Job with submission_id {job} already exists. Please use a different one."

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = "/api/packages" if self.path.startswith("/api/packages") else self.path
            asked = re.sub("flyserve-[0-9a-f]{16}", "job", asked)
            status, text = left.pop(0) if asked == path and left else (200, json.dumps(ANSWERS[asked]))
            if asked == "/api/jobs/" and status in (0, 200):
                status, text = refusal(body) or (status, text)
            if (status, text) == CLOSED:
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("path", "faults"),
    [
        ("/api/version", [(503, "no upstream")]),
        ("/api/version", [(200, "it starts")]),
        ("/api/packages", [CLOSED]),
        ("/api/jobs/", [(500, "no agent for 172.0.0.403 within 401 ms"), (404, "no such route")]),
        ("/api/jobs/", [CLOSED]),
        ("/api/jobs/job", [CLOSED, (502, "bad gateway"), (404, "no such route"), CLOSED]),
        ("/api/jobs/job/logs", [(504, "gateway timeout"), CLOSED]),
    ],
)
def test_a_dashboard_that_fails_for_a_while_is_asked_again(
    path: str, faults: list[tuple[int, str]], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_POLL_S", 0.0)
    shown: list[str] = []
    with dashboard(path, *faults) as url:
        apply_as_job(url, file, timeout_s=600, show=shown.append)
    assert shown == ["unchanged"]


@pytest.mark.parametrize("path", ["/api/jobs/job", "/api/jobs/job/logs"])
def test_a_job_that_a_restarted_head_does_not_know_ends_the_command_at_once(path: str, file: Path) -> None:
    with (
        dashboard(path, (404, "Job flyserve-1234 does not exist")) as url,
        pytest.raises(NotReady, match=f"{url}: the job flyserve-.* is gone, as after a restart of the head"),
    ):
        apply_as_job(url, file, timeout_s=600, show=print)


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "Unauthorized: Missing authentication token"), (403, "Forbidden: Invalid authentication token")],
)
def test_a_token_that_is_not_accepted_is_reported_at_once(status: int, words: str, file: Path) -> None:
    with (
        dashboard("/api/version", (status, words)) as url,
        pytest.raises(ConfigError, match=f"{url}: .*RAY_AUTH_TOKEN.* token of the cluster's head"),
    ):
        apply_as_job(url, file, timeout_s=600, show=print)


def test_a_dashboard_that_never_answers_ends_the_command_in_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_LAST_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NotReady, match=f"{url}: Ray's dashboard does not answer"):
            apply_as_job(url, file, timeout_s=0.1, show=print)
