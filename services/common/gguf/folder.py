"""The folder with the tokenizer of a GGUF file: made once, and kept in the user's cache."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from flyserve.core.errors import ModelError, describe
from services.common.gguf.header import read_header
from services.common.gguf.tokenizer import model_files

_FORM = 1
"""Number of the form of the folders; a change of the conversion increases it."""
_TOKENIZER = "tokenizer.json"


def tokenizer_folder(file: Path) -> Path:
    """Return the folder with tokenizer, chat template and generation config of a file.

    If its tokenizer is of an unsupported kind, that is the file's own folder with a `tokenizer.json`.

    Raises:
        ModelError: The file is damaged, there is no tokenizer, or the cache cannot be written.
    """
    return named_folder(str(file), _key(file), lambda: read_header(file), file.parent)


def named_folder(
    name: str, key: str, header: Callable[[], Mapping[str, Any]], beside: Path | None = None
) -> Path:
    """Return the same of a file whose content changes with `key`, and whose header is read if it must be.

    `beside` is a folder that may have another `tokenizer.json`. Raise ModelError as `tokenizer_folder`.
    """
    digest = hashlib.blake2b(f"{_FORM} {key}".encode("utf-8", "surrogatepass"), digest_size=16)
    folder = _cache() / digest.hexdigest()
    if folder.is_dir():
        return folder
    metadata = header()
    try:
        files = model_files(metadata)
    except ModelError as error:
        if beside is not None and (beside / _TOKENIZER).is_file():
            return beside
        raise ModelError(f"{name}: {error}; or put the model's own {_TOKENIZER} next to it") from None
    try:
        _write(folder, files)
    except OSError as error:
        raise ModelError(f"{folder} cannot be written (XDG_CACHE_HOME, HOME): {describe(error)}") from None
    return folder


def _write(folder: Path, files: Mapping[str, Any]) -> None:
    """Make a folder as a whole; of several processes that make it at once the first one wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(dir=folder.parent, prefix="unfinished-"))
    try:
        for name, content in files.items():
            (made / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        made.rename(folder)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not folder.is_dir():
            raise


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "flyserve" / "gguf"


def _key(file: Path) -> str:
    """Return a text that changes with the file."""
    try:
        found = file.stat()
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {describe(error)}") from None
    return f"{file.resolve()} {found.st_size} {found.st_mtime_ns}"
