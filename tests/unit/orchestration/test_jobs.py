import socket
from pathlib import Path

import pytest

from flyserve.core.errors import ConfigError, NotReady
from orchestration.ray.jobs import apply_as_job


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


def test_a_faulty_file_is_rejected_before_anything_is_sent(file: Path) -> None:
    file.write_text("target: {modell: somewhere}")
    with pytest.raises(ConfigError, match=r"target\.modell: unknown key, did you mean 'model'"):
        apply_as_job("http://127.0.0.1:1", file, timeout_s=60, show=print)
