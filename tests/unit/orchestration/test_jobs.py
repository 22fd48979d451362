import socket
from pathlib import Path
from typing import ClassVar

import pytest
from ray.job_submission import JobStatus

from flyserve.core.errors import ConfigError, NotReady
from orchestration.deployment.file import Deployment
from orchestration.ray import jobs
from orchestration.ray.jobs import apply_as_job
from services.common.config import load_yaml


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

    def submit_job(self, entrypoint: str, runtime_env: dict[str, str]) -> str:
        self.sent.append(load_yaml(Deployment, Path(runtime_env["working_dir"]) / "deployment.yaml"))
        return "job"

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
