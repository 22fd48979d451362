"""A small GGUF file, and a function that loads it or another one."""

from pathlib import Path
from typing import Any

import pytest

from flyserve.core.messages import Role
from services.engine.config import LlamaCppConfig
from services.engine.llamacpp.runner import LlamaCppRunner
from services.engine.llamacpp.start import load_gguf_runner
from tests.support.gguf_files import gguf_of
from tests.support.tiny_models import make_tiny
from tests.unit.engine.llamacpp.gguf_rig import Load


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_of(make_tiny("llama"), tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def load(file: Path) -> Load:
    def load(**changes: Any) -> LlamaCppRunner:
        size = {"model": file, "max_sequences": 4, "kv_tokens": 512, "max_batch_tokens": 64, **changes}
        return load_gguf_runner(LlamaCppConfig(role=Role.TARGET, **size))

    return load
