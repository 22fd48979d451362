"""Places that models are copied from: the model hub, and every folder that fsspec has a client for."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from flyserve.core.errors import ConfigError, ModelError, describe, one_line
from services.common.fetching.manifest import MANIFEST, Manifest, SourceFile, is_wanted
from services.common.model_source import hub_errors

CHECKSUMS = "SHA256SUMS"
"""File of a folder with the hashes of the others, as sha256sum writes it."""
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class Source(Protocol):
    """The place of a model that can be fetched."""

    @property
    def name(self) -> str:
        """Name of the model there, as in messages and in the manifest of a copy."""

    def files(self) -> list[SourceFile]:
        """Return the wanted files; raises ModelError."""

    def fetch(self, file: SourceFile, folder: Path) -> None:
        """Write a file into a folder; raises ModelError. An interrupted copy has another name."""


class HubSource:
    """A repository of the hub at a revision, which is resolved once, so that all files are of one commit.

    Attributes:
        commit: The commit; empty until the files are listed.
    """

    def __init__(self, repository: str, revision: str, wants: Callable[[str], bool] = is_wanted) -> None:
        """Name a repository; `wants` returns True for the names of the files to list."""
        self._repository, self._wants = repository, wants
        self._revision = revision
        self.commit = ""

    @property
    def name(self) -> str:
        return f"hf://{self._id}"

    @property
    def _id(self) -> str:
        return f"{self._repository}@{self._revision}"

    def files(self) -> list[SourceFile]:
        from huggingface_hub import HfApi, constants

        limit = constants.HF_HUB_ETAG_TIMEOUT  # this call has none by itself, others have this one
        with hub_errors(self._id):
            info = HfApi().model_info(
                self._repository, revision=self._revision, files_metadata=True, timeout=limit
            )
        self.commit = info.sha or self._revision
        return [
            # A large file is stored under its sha256, any other one as a blob of git.
            SourceFile(found.rfilename, found.size or 0, sha256=found.lfs.sha256)
            if found.lfs is not None
            else SourceFile(found.rfilename, found.size or 0, git_hash=found.blob_id or "")
            for found in info.siblings or ()
            if self._wants(found.rfilename)
        ]

    def fetch(self, file: SourceFile, folder: Path) -> None:
        from huggingface_hub import hf_hub_download

        with hub_errors(self._id):
            hf_hub_download(
                self._repository, file.name, revision=self.commit or self._revision, local_dir=folder
            )


class FolderSource:
    """A folder, local or by URL; its files have hashes if it has SHA256SUMS or is a copy itself.

    Raises:
        ConfigError: The client for the URL's scheme is not installed, or there is none.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self._system, root = url_to_fs(url)
        except ImportError as error:
            raise ConfigError(f"{url}: the client of this store is missing: {one_line(error)}") from None
        except ValueError as error:
            raise ConfigError(f"{url}: cannot be read: {one_line(error)}") from None
        self.name, self._folder = url, root.rstrip("/")

    def files(self) -> list[SourceFile]:
        try:
            listed = {_base(info["name"]): info for info in self._system.ls(self._folder, detail=True)}
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
            self._system.get_file(f"{self._folder}/{file.name}", str(begun))
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
        return str(self._system.read_text(f"{self._folder}/{name}", encoding="utf-8"))


def _base(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
