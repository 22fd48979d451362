"""Fill a folder with a model: resumable by file, checked by hash, visible only when it is complete."""

import errno
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flyserve.core.errors import ConfigError, ModelError, NotReady, describe
from services.common.fetching.manifest import (
    MANIFEST,
    Manifest,
    SourceFile,
    fault_of_copy,
    fault_of_list,
    read_back,
)
from services.common.fetching.sources import FolderSource, HubSource, Source
from services.common.home import expanded
from services.common.model_source import HUB_FILE, HUB_ID

Report = Callable[[str, int, int], None]
"""Called for each file that is done: its name, bytes of the model that are done, bytes of all."""

LOCK = ".lock"
HUB_CLIENT = ".cache"
_POLL_S = 2.0


def canonical_name(model: str) -> str:
    """Return the one name of a source: `hf://org/name@revision`, the absolute path of a folder, or its URL.

    Raises:
        ConfigError: There is no such folder, the revision is missing, or the scheme is not supported.
    """
    scheme, _, rest = model.rpartition("://")
    if scheme == "oci":
        raise ConfigError(
            f"{model}: images are not fetched: mount it as a volume, or copy its folder with another tool"
        )
    if scheme not in ("", "hf"):
        return model.rstrip("/")
    if not scheme and not rest:
        raise ConfigError("MODEL: is empty, must be hf://org/name@revision, a folder or the URL of one")
    if not scheme and (folder := expanded(Path(rest))).is_dir():
        return str(folder.resolve())
    if HUB_FILE.fullmatch(rest) is not None:
        raise ConfigError(f"{model}: is a GGUF file, and pull fills folders: hf download fetches it")
    if HUB_ID.fullmatch(rest) is not None:
        return f"hf://{rest}"
    reason = "names no revision" if scheme else f"no folder {rest}, and no model of the hub"
    raise ConfigError(f"{model}: {reason}: a model of the hub is written hf://org/name@revision")


def source_of(model: str) -> Source:
    """Return the source that a name stands for.

    Raises:
        ConfigError: As `canonical_name`, or the client for the scheme is not installed.
    """
    name = canonical_name(model)
    if not name.startswith("hf://"):
        return FolderSource(name)
    repository, _, revision = name.removeprefix("hf://").partition("@")
    return HubSource(repository, revision)


def fetch_model(source: Source, destination: Path, report: Report, verifies: bool = False) -> Manifest:
    """Fill `destination` with a model and return its manifest; do nothing if it holds this model already.

    A copy that was interrupted goes on with the file at which it stopped. The folder appears when all files
    have the size and the hash that the source names.

    Args:
        source: The model.
        destination: Folder to fill; it must be absent, or a copy of this source.
        report: Receives the progress.
        verifies: Also hash the files of a copy that is complete.

    Raises:
        ConfigError: The folder holds something else.
        ModelError: The source cannot be read, a file is damaged, or the disk is too small.
    """
    if (present := _present(source.name, destination)) is not None:
        if verifies:
            _verify(present, destination, report)
        return present
    part = destination.with_name(f".{destination.name}.part")
    try:
        files = source.files()
        if fault := fault_of_list(files):
            raise ModelError(f"{source.name}: {fault}")
        part.mkdir(parents=True, exist_ok=True)
        with _only_writer(part):
            manifest = _filled(source, files, part, report)
        part.replace(destination)
    except OSError as error:
        raise ModelError(f"{destination}: cannot be filled: {describe(error)}") from error
    return manifest


def wait_until_filled(
    name: str,
    destination: Path,
    timeout_s: float,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until another process has filled `destination` from the source of this canonical name.

    Raises:
        NotReady: The time is over.
        ConfigError: The folder holds something else.
    """
    deadline = now() + timeout_s
    while _present(name, destination) is None:
        if now() >= deadline:
            raise NotReady(f"{destination} does not hold {name} after {timeout_s:g} s")
        pause(_POLL_S)


def _present(name: str, destination: Path) -> Manifest | None:
    """Return the manifest of a complete copy; None if the folder is absent."""
    if not destination.exists():
        if destination.is_symlink():
            raise ConfigError(f"{destination}: is a link to nothing: name another folder, or remove it")
        return None
    manifest = Manifest.of(destination)
    if manifest is None:
        raise ConfigError(
            f"{destination}: exists, and is no copy that flyserve pull made: name another folder"
        )
    if manifest.source != name:
        raise ConfigError(
            f"{destination}: holds {manifest.source}, not {name}: name another folder, or remove it"
        )
    kept = manifest.kept(destination)
    if missing := [file.name for file in manifest.files if file.name not in kept]:
        raise ModelError(f"{destination}: {missing[0]} is missing or has another size: remove the folder")
    return manifest


def _verify(manifest: Manifest, folder: Path, report: Report) -> None:
    done, total = 0, sum(file.size for file in manifest.files)
    for file in manifest.files:
        if fault := fault_of_copy(read_back(folder / file.name, file), file):
            raise ModelError(f"{folder / file.name}: {fault}: remove the folder and pull again")
        done += file.size
        report(file.name, done, total)


def _filled(source: Source, files: list[SourceFile], part: Path, report: Report) -> Manifest:
    """Fetch the files that are not there yet; each is checked, and listed when it is done."""
    copies = _kept(source, files, part)
    # The hub's client keeps a file that it has begun in a folder of its own, and goes on with it.
    _remove_others(part, {*copies, HUB_CLIENT})
    total = sum(file.size for file in files)
    _require_space(part, total - sum(copy.size for copy in copies.values()))
    for file in files:
        if file.name not in copies:
            copies[file.name] = _fetched(source, file, part)
            Manifest(source.name, tuple(copies.values())).write(part)
        report(file.name, sum(copy.size for copy in copies.values()), total)
    manifest = Manifest(source.name, tuple(copies[file.name] for file in files))
    manifest.write(part)
    _remove_others(part, set(copies))
    return manifest


def _kept(source: Source, files: list[SourceFile], part: Path) -> dict[str, SourceFile]:
    """Return the files that an interrupted copy has and the source still has."""
    begun = Manifest.of(part)
    found = begun.kept(part) if begun is not None and begun.source == source.name else {}
    kept = {}
    for file in files:
        copy = found.get(file.name)
        # The manifest has no hashes of git, which only small files have: these are read again.
        if copy is not None and not fault_of_copy(
            read_back(part / file.name, file) if file.git_hash else copy, file
        ):
            kept[file.name] = copy
    return kept


def _remove_others(part: Path, names: set[str]) -> None:
    for path in part.iterdir():
        if path.name in {*names, MANIFEST, LOCK}:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _fetched(source: Source, file: SourceFile, part: Path) -> SourceFile:
    source.fetch(file, part)
    copy = read_back(part / file.name, file)
    if fault := fault_of_copy(copy, file):
        (part / file.name).unlink()
        raise ModelError(f"{source.name}: {file.name} {fault}: it is damaged, or has changed: pull again")
    return replace(copy, git_hash="")


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"{folder}: has {free / 1e9:.1f} GB free, but needs {needed / 1e9:.1f} GB: enlarge the volume"
        )


@contextmanager
def _only_writer(part: Path) -> Iterator[None]:
    """Raise ModelError if another process fills the folder.

    NOTE: some network file systems have no locks, or ignore them; then two processes may do the work twice.
    """
    path = part / LOCK
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelError(f"{part}: another flyserve pull fills this folder: wait for it") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                raise
        yield
        path.unlink()
