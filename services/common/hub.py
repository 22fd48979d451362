"""Models of the hub by the names that people write: a commit for each, and downloads with progress."""

import io
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flyserve.core.errors import ModelError, describe
from services.common.fetching.manifest import is_wanted
from services.common.fetching.sources import HubSource
from services.common.gguf.choice import choose_file
from services.common.gguf.header import SUFFIX, part_names
from services.common.hub_copies import commits_of, is_commit, keep_commit, listed_files
from services.common.model_source import (
    FILE_REVISION,
    MODEL_FILES,
    REPOSITORY,
    WEIGHT_FILES,
    hub_errors,
    is_hub_id,
    model_folder,
    snapshot,
)

_NAMES = (
    re.compile(rf"{REPOSITORY}(?<!\.gguf)(@(?P<revision>{FILE_REVISION}))?/(?P<file>.+\.gguf)"),
    re.compile(rf"{REPOSITORY}(?<!\.gguf)(@(?P<revision>[\w./-]+))?(:(?P<file>[\w.-]+))?"),
)
_DEFAULT_REVISION = "main"

logger = logging.getLogger(__name__)

Report = Callable[[int, int], None]
"""Called while files arrive: bytes that have arrived, bytes of all."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub at a commit.

    Attributes:
        name: `org/name@commit`; of a GGUF file `org/name@commit/FILE`.
        weight_bytes: Bytes of its weights.
        folder: Its files on this machine: all of them, or only the configuration; None for a GGUF file.
    """

    name: str
    weight_bytes: int
    folder: Path | None


class _Wanted(NamedTuple):
    """A name as it is written; `source` is it without the file, which is a path, a quantization, or empty."""

    source: str
    repository: str
    revision: str
    file: str

    @classmethod
    def parsed(cls, name: str) -> "_Wanted":
        found = next(filter(None, (pattern.fullmatch(name) for pattern in _NAMES)))
        repository, revision = found["repository"], found["revision"]
        source = f"{repository}@{revision}" if revision else repository
        return cls(source, repository, revision or _DEFAULT_REVISION, found["file"] or "")


def is_hub_name(name: str) -> bool:
    """Return True for `org/name`, and for a GGUF file of it: `org/name/FILE`, `org/name:Q4_K_M`.

    A revision may follow `org/name` (`@revision`).
    """
    return any(pattern.fullmatch(name) for pattern in _NAMES)


def resolve(name: str) -> HubModel:
    """Return the commit that a name stands for, and the file of a GGUF model; fetch the configuration alone.

    The hub decides. If it cannot be asked, or refuses, the newest complete copy on this machine that was
    fetched by this revision is used.

    Raises:
        ModelError: The hub has no such model or revision, it is gated, or it cannot be reached; or no GGUF
            file fits the name, or several do.
    """
    from huggingface_hub.constants import is_offline_mode

    wanted = _Wanted.parsed(name)
    if is_commit(wanted.revision) and (kept := _kept(wanted)) is not None:
        return kept
    source = HubSource(wanted.repository, wanted.revision, _is_servable)
    try:
        sizes = {file.name: file.size for file in source.files()}
        with hub_errors(f"{wanted.repository}@{wanted.revision}"):
            folder = None if _is_gguf(wanted, sizes) else _config_folder(wanted.repository, source.commit)
    except ModelError as error:
        if (kept := _kept(wanted)) is None:
            raise
        if not is_offline_mode():
            reason = describe(error.__context__ or error)
            logger.warning("the model hub did not answer, or refused, so a copy here is served: %s", reason)
        return kept
    if folder is None:
        return _gguf_model(wanted, source.commit, sizes)
    return HubModel(f"{wanted.repository}@{source.commit}", sum(_weights(sizes)), folder)


def fetch(model: Path, report: Report, name: str = "") -> Path:
    """Return the folder of a model; a model of the hub is downloaded unless this machine has it.

    `name` is the name that `resolve` resolved to `model`; it then stands for this copy without a network.

    Raises:
        ModelError: As `resolve`, or the download fails.
    """
    if not is_hub_id(model):
        return model
    folder = model_folder(model, progress=_progress(report))
    if name:
        wanted = _Wanted.parsed(name)
        commit = str(model).partition("@")[2].partition("/")[0]
        keep_commit(wanted.repository, wanted.revision, commit)
    return folder


def _is_servable(name: str) -> bool:
    return is_wanted(name) or name.endswith(SUFFIX)


def _is_gguf(wanted: _Wanted, sizes: Mapping[str, int]) -> bool:
    """Check that a GGUF file is meant: by the name, or because a repository has no other weights."""
    return bool(wanted.file) or (not _weights(sizes) and any(name.endswith(SUFFIX) for name in sizes))


def _weights(sizes: Mapping[str, int]) -> list[int]:
    return [size for name, size in sizes.items() if is_wanted(name) and Path(name).match(WEIGHT_FILES[0])]


def _gguf_model(wanted: _Wanted, commit: str, sizes: Mapping[str, int]) -> HubModel:
    file = choose_file(wanted.source, sizes, wanted.file)
    if missing := [part for part in part_names(file) if part not in sizes]:
        raise ModelError(f"{wanted.source} lacks parts of {file}: {', '.join(missing[:5])}")
    size = sum(sizes[part] for part in part_names(file))
    return HubModel(f"{wanted.repository}@{commit}/{file}", size, None)


def _kept(wanted: _Wanted) -> HubModel | None:
    """Return the newest complete copy on this machine; None if there is none."""
    revision = wanted.revision
    commits = [revision] if is_commit(revision) else commits_of(wanted.repository, revision)
    return next(filter(None, (_copy(wanted, commit) for commit in commits)), None)


def _copy(wanted: _Wanted, commit: str) -> HubModel | None:
    """Return the copy of a commit; None if it is not complete."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository = wanted.repository
    try:
        folder = snapshot(repository, commit, (), local_files_only=True)
        files = (file for file in folder.rglob("*") if file.is_file())
        sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}
        if _is_gguf(wanted, listed_files(repository, commit) or sizes):
            return _gguf_model(wanted, commit, sizes)
        snapshot(repository, commit, MODEL_FILES, local_files_only=True)  # which fails if one is missing
    except (LocalEntryNotFoundError, OSError, ValueError, ModelError):
        return None
    weights = _weights(sizes)
    is_usable = bool(weights) and "config.json" in sizes
    return HubModel(f"{repository}@{commit}", sum(weights), folder) if is_usable else None


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
