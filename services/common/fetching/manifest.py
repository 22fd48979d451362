"""The list of a copy's files with their hashes, in a hidden file beside them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from services.common.fetching.files import SourceFile

MANIFEST = ".flyserve-model.json"


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
