"""The files of a model folder: which weights it has, and their hash; any engine reads them this way."""

import hashlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from safetensors import SafetensorError, safe_open

from flyserve.core.errors import ModelError, describe
from services.common.loading_progress import loading_progress

_BLOCK_BYTES = 1 << 22
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_LFS_POINTER = b"version https://git-lfs"


def fingerprint(files: list[Path], is_cancelled: Callable[[], bool] = lambda: False) -> str:
    """Return a hash of the files' names, sizes and contents; of a part of them once it is cancelled.

    A load reads the same files beside it, so its progress is that of the load.
    """
    digest = hashlib.blake2b(digest_size=16)
    done, total = 0, sum(path.stat().st_size for path in files)
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        with path.open("rb") as file:
            while not is_cancelled() and (block := file.read(_BLOCK_BYTES)):
                digest.update(block)
                done += len(block)
                loading_progress.report(done, total)
    return digest.hexdigest()


class BackgroundFingerprint:
    """The hash of files, computed on a thread while this one loads them; a block that fails cancels it."""

    def __init__(self, files: list[Path]) -> None:
        self._cancelled = threading.Event()
        self._pool = ThreadPoolExecutor(1, "flyserve-hash")
        self._hash = self._pool.submit(fingerprint, files, self._cancelled.is_set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._cancelled.set()
        self._pool.shutdown(wait=kind is not None)

    def result(self) -> str:
        """Wait for the hash and return it."""
        return self._hash.result()


def read_architecture(folder: Path) -> str:
    """Return the name of the model's class in the folder's configuration.

    Raises:
        ModelError: There is no configuration, or it names no class.
    """
    path = folder / "config.json"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["architectures"][0])
    except FileNotFoundError:
        raise ModelError(f"{folder} has no {path.name}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"{path} names no architecture: {describe(error)}") from error


def weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers loads from the folder; pickled weights are never opened.

    Raises:
        ModelError: There are no safetensors, a shard is missing, or a file is incomplete.
    """
    if (folder / _WHOLE).is_file():
        files = [folder / _WHOLE]
    elif (folder / _INDEX).is_file():
        files = _shards(folder / _INDEX)
    else:
        raise ModelError(f"{folder} has {_found_instead(folder)}")
    for file in files:
        _check_complete(file)
    return files


def _shards(index: Path) -> list[Path]:
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        names = sorted({str(name) for name in named})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not a valid index of weights: {describe(error)}") from error
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{index} lists {name!r}, must list *.safetensors files in its own folder")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing or not names:
        raise ModelError(f"{index.parent} lacks weights that {_INDEX} lists: {', '.join(missing) or 'none'}")
    return [index.parent / name for name in names]


def _check_complete(file: Path) -> None:
    """Read the header, which contains the length that the file must have."""
    with file.open("rb") as opened:
        if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ModelError(
                f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` in its folder"
            )
    try:
        with safe_open(file, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is damaged or incomplete: {describe(error)}") from error


def _found_instead(folder: Path) -> str:
    """Describe the weights that the folder has instead of loadable ones."""
    if others := sorted(path.name for path in folder.glob("*.safetensors")):
        return f"neither {_WHOLE} nor {_INDEX}, only {', '.join(others[:3])}"
    if any(any(folder.glob(pattern)) for pattern in _PICKLED):
        return "only pickled weights, which can run code: convert them to safetensors"
    if any(folder.glob("*.gguf")):
        return "only GGUF weights: name the file itself, with engine llamacpp"
    return "no *.safetensors weights"
