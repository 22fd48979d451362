"""Files of a model at its source: which of them are fetched, and the hashes that copies must have."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

from services.common.model_source import EXCLUDED_FILES, TEXT_FILES, WEIGHT_FILES

BLOCK_BYTES = 1 << 23


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a model, as its source lists it.

    Attributes:
        name: Name in the folder of the model, which has no folders of its own.
        size: Bytes.
        sha256: Hash of the content; empty if the source does not know it.
        git_hash: Hash of the content as a blob of git; empty if the source does not know it.
    """

    name: str
    size: int
    sha256: str = ""
    git_hash: str = ""


class Source(Protocol):
    """The place of a model that can be fetched."""

    @property
    def name(self) -> str:
        """Name of the model there, as in messages and in the manifest of a copy."""

    def files(self) -> list[SourceFile]:
        """Return the wanted files; raises ModelError."""

    def fetch(self, file: SourceFile, folder: Path) -> None:
        """Write a file into a folder; raises ModelError. An interrupted copy has another name."""


def is_wanted(name: str) -> bool:
    """Return True for configuration, tokenizer and weights at the top of the model's folder."""
    is_excluded = any(fnmatch(name, pattern) for pattern in EXCLUDED_FILES)
    return not is_excluded and any(fnmatch(name, pattern) for pattern in (*TEXT_FILES, *WEIGHT_FILES))


def fault_of_list(files: list[SourceFile]) -> str:
    """Return the reason why these files are no model; empty if they are one."""
    if not any(file.name == "config.json" for file in files):
        return "has no config.json"
    if not any(fnmatch(file.name, pattern) for file in files for pattern in WEIGHT_FILES):
        return f"has no weights ({', '.join(WEIGHT_FILES)})"
    return ""


def read_back(path: Path, file: SourceFile) -> SourceFile:
    """Return the size and the hashes of a copy; that of git only if the source names it."""
    size = path.stat().st_size
    sha256 = hashlib.sha256()
    # NOTE: git's own names of contents, no signature.
    blob = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    for block in _blocks(path):
        sha256.update(block)
        if file.git_hash:
            blob.update(block)
    return SourceFile(file.name, size, sha256.hexdigest(), blob.hexdigest() if file.git_hash else "")


def fault_of_copy(copy: SourceFile, file: SourceFile) -> str:
    """Return the difference between a copy and its source; empty if there is none."""
    if copy.size != file.size:
        return f"has {copy.size} bytes instead of {file.size}"
    for kind, found, expected in (
        ("sha256", copy.sha256, file.sha256),
        ("git hash", copy.git_hash, file.git_hash),
    ):
        if expected and found != expected:
            return f"has the {kind} {found} instead of {expected}"
    return ""


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as content:
        while block := content.read(BLOCK_BYTES):
            yield block
