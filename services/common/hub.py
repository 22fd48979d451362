"""Models of the hub by the names that people write: a commit for each, and downloads with progress."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyserve.core.errors import ModelError
from services.common.fetching.sources import HubSource
from services.common.model_source import WEIGHT_FILES, hub_errors, is_hub_id, model_folder, snapshot

_NAME = re.compile(r"[^\W_][\w.-]*/[^\W_][\w.-]*(@[\w./-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DEFAULT_REVISION = "main"

Report = Callable[[int, int], None]
"""Called while files arrive: bytes that have arrived, bytes of all."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub at a commit.

    Attributes:
        name: `org/name@commit`.
        weight_bytes: Bytes of its weights.
        folder: Its files on this machine: all of them, or only the configuration.
    """

    name: str
    weight_bytes: int
    folder: Path


def is_hub_name(name: str) -> bool:
    """Return True for `org/name`, with a revision or without."""
    return _NAME.fullmatch(name) is not None


def resolve(name: str) -> HubModel:
    """Return the commit that `org/name` stands for, or `org/name@revision`; fetch its configuration alone.

    Without a network, a copy on this machine answers.

    Raises:
        ModelError: The hub has no such model or revision, it is gated, or it cannot be reached.
    """
    repository, _, revision = name.partition("@")
    revision = revision or _DEFAULT_REVISION
    if (kept := _kept(repository, revision)) is not None and _COMMIT.fullmatch(revision):
        return kept
    source = HubSource(repository, revision)
    try:
        files = source.files()
        with hub_errors(f"{repository}@{revision}"):
            folder = _config_folder(repository, source.commit)
    except ModelError:
        if kept is not None:
            return kept
        raise
    weights = sum(file.size for file in files if Path(file.name).match(WEIGHT_FILES[0]))
    return HubModel(f"{repository}@{source.commit}", weights, folder)


def fetch(model: Path, report: Report) -> Path:
    """Return the folder of a model; a model of the hub is downloaded unless this machine has it.

    Raises:
        ModelError: As `resolve`, or the download fails.
    """
    if not is_hub_id(model):
        return model
    return model_folder(model, progress=_progress(report))


def _kept(repository: str, revision: str) -> HubModel | None:
    """Return a complete copy on this machine; None if there is none."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot(repository, revision, local_files_only=True)
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None
    weights = [file.stat().st_size for file in folder.glob(WEIGHT_FILES[0])]
    is_usable = bool(weights) and (folder / "config.json").is_file()
    return HubModel(f"{repository}@{folder.name}", sum(weights), folder) if is_usable else None


def _config_folder(repository: str, commit: str) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(repository, "config.json", revision=commit)).parent


def _progress(report: Report) -> type[Any]:
    """Return a class in the place of the client's progress bars, which reports the bars that count bytes."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Progress(tqdm):  # type: ignore[misc]
        """A bar that prints nothing."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> Any:
            shown = super().update(n)
            if self.unit == "B" and self.total:
                report(int(self.n), int(self.total))
            return shown

    return Progress
