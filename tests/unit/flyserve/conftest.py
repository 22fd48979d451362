import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_hub import HANG_S, PARTS, FakeHub, fake_hub
from tests.support.gguf_files import described_llama, write_gguf
from tests.unit.flyserve.fake_generation import FakeGeneration, fake_generation


@pytest.fixture
def served() -> Iterator[tuple[FakeGeneration, str]]:
    with fake_generation() as served:
        yield served


@pytest.fixture
def coloured_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard output and standard error be a terminal with colours, as far as rich can see."""
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub with `org/name`, and an empty cache."""
    config = {"num_attention_heads": 8, "num_key_value_heads": 8, "dtype": "bfloat16"}
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": b"0" * 64}
    with fake_hub(files) as hub:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        for limit in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
            monkeypatch.setattr(f"huggingface_hub.constants.{limit}", HANG_S)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


@pytest.fixture
def gguf_hub(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """The hub, with GGUF files alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = write_gguf(tmp_path / "m.gguf", described_llama(), {}).read_bytes()
    names = ("a-Q4_K_M.gguf", "a-Q8_0.gguf", *PARTS, "mmproj-Q8_0.gguf", "imatrix.gguf")
    hub.files = {"README.md": b"", **{name: model + name.encode() for name in names}}
    return hub
