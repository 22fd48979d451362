"""Files of a model with their hashes, and the list of those of a copy, in a hidden file beside them."""

import hashlib
import json
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Self

from services.common.model_source import EXCLUDED_FILES, TEXT_FILES, WEIGHT_FILES

MANIFEST = ".flyserve-model.json"
_BLOCK_BYTES = 1 << 23


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
    with path.open("rb") as content:
        while block := content.read(_BLOCK_BYTES):
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


@dataclass(frozen=True, slots=True)
class Manifest:
    """Source of a copy, and its files that are complete and have been checked."""

    source: str
    files: tuple[SourceFile, ...] = ()

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the manifest that `text` is; raises ValueError if it is none."""
        try:
            content = json.loads(text)
            files = content["files"].items()
            return cls(
                str(content["source"]),
                tuple(SourceFile(name, int(file["size"]), str(file["sha256"])) for name, file in files),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no manifest of a model: {error}") from None

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Return the manifest of a folder; None if it has none that can be read."""
        try:
            return cls.parsed((folder / MANIFEST).read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def write(self, folder: Path) -> None:
        """Replace the manifest of a folder, at once."""
        files = {file.name: {"size": file.size, "sha256": file.sha256} for file in self.files}
        begun = folder / f"{MANIFEST}.begun"
        begun.write_text(json.dumps({"source": self.source, "files": files}, indent=1), encoding="utf-8")
        begun.replace(folder / MANIFEST)

    def kept(self, folder: Path) -> dict[str, SourceFile]:
        """Return the listed files that the folder still has, by name."""
        return {file.name: file for file in self.files if _size(folder / file.name) == file.size}


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
