"""A folder as a source of copies: of this machine, or of any store that fsspec has a client for."""

import re
from pathlib import Path
from typing import Any

from fly.errors import ConfigError, ModelError, describe
from services.common.fetching.files import BLOCK_BYTES, SourceFile, is_wanted
from services.common.fetching.manifest import MANIFEST, Manifest

CHECKSUMS = "SHA256SUMS"
"""File of a folder with the hashes of the others, as sha256sum writes it."""
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class FolderSource:
    """A folder, local or by URL; its files have hashes if it has SHA256SUMS or is a copy itself.

    Raises:
        ConfigError: The client for the URL's scheme is not installed, or there is none.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self._system, self._root = url_to_fs(url)
        except ImportError as error:
            raise ConfigError(f"{url}: the client of this store is missing: {_text(error)}") from None
        except ValueError as error:
            raise ConfigError(f"{url}: cannot be read: {_text(error)}") from None
        self.name = url

    def files(self) -> list[SourceFile]:
        try:
            listed = {_base(info["name"]): info for info in self._system.ls(self._root, detail=True)}
            hashes = self._hashes(set(listed))
            return [
                SourceFile(name, int(self._system.size(info["name"])), hashes.get(name, ""))
                for name, info in sorted(listed.items())
                if info["type"] == "file" and is_wanted(name)
            ]
        except Exception as error:  # of whichever client: no folder, no credentials, no network
            raise ModelError(f"{self.name}: cannot be listed: {describe(error)}") from error

    def fetch(self, file: SourceFile, folder: Path) -> None:
        begun = folder / f"{file.name}.begun"
        try:
            with self._open(file.name) as content, begun.open("wb") as copy:
                while block := content.read(BLOCK_BYTES):
                    copy.write(block)
            begun.replace(folder / file.name)
        except Exception as error:  # of whichever client, or of the disk
            raise ModelError(f"{self.name}: {file.name} cannot be fetched: {describe(error)}") from error

    def _hashes(self, names: set[str]) -> dict[str, str]:
        if MANIFEST in names:
            return {file.name: file.sha256 for file in Manifest.parsed(self._text(MANIFEST)).files}
        if CHECKSUMS in names:
            lines = (_LINE.fullmatch(line) for line in self._text(CHECKSUMS).splitlines())
            return {found[2].removeprefix("./"): found[1] for found in lines if found is not None}
        return {}

    def _text(self, name: str) -> str:
        with self._open(name) as content:
            return str(content.read().decode())

    def _open(self, name: str) -> Any:
        return self._system.open(f"{self._root.rstrip('/')}/{name}", "rb")


def _base(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
