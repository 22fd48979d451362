"""Find the folder of a model: a local one, that of a GGUF file, or a download of `org/name@revision`."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from glob import escape
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from flyserve.core.errors import ModelError, describe
from services.common.gguf.folder import named_folder, tokenizer_folder
from services.common.gguf.header import is_gguf, part_names, streamed_header
from services.common.hub_copies import commits_of, is_commit, keep_commit

REPOSITORY = r"(?P<repository>[^\W_][\w.-]*/[^\W_][\w.-]*)"
"""Pattern of `org/name`."""
FILE_REVISION = r"refs/\w+/[\w.-]+|[\w.-]+"
"""Pattern of a revision that a file follows."""
HUB_ID = re.compile(REPOSITORY + r"@(?P<revision>[\w./-]+)")
"""Name of a model on the hub; a revision is a branch, a tag or a commit."""
HUB_FILE = re.compile(rf"{REPOSITORY}@(?P<revision>{FILE_REVISION})/(?P<file>.+\.gguf)")
"""Name of a GGUF file on the hub; of a model in parts it is the first one."""
TEXT_FILES = ("*.json", "*.jinja")
"""Configuration, tokenizer and chat template: the files that a router needs."""
WEIGHT_FILES = ("*.safetensors",)
MODEL_FILES = (*TEXT_FILES, *WEIGHT_FILES)
_BLOCK_BYTES = 1 << 20
GGUF_ENGINE = "llamacpp"
"""Engine that reads GGUF files, and nothing else."""
EXCLUDED_FILES = ("*/*", "consolidated*.safetensors")
"""Folders of other formats, and weights under other names."""


def _servable(value: Any) -> Any:
    """Refuse a URL, which a path would garble."""
    if isinstance(value, str) and (name := value.removeprefix("hf://")) != value:
        raise ValueError(f"a model of the hub is written {name if '@' in name else name + '@revision'} here")
    if isinstance(value, str) and "://" in value:
        raise ValueError(
            f"models are read from folders and from the hub: flyserve pull {value} FOLDER fills a folder"
        )
    return value


ModelPath = Annotated[Path, BeforeValidator(_servable)]
"""Key of a model: a folder, a GGUF file, or one of them on the hub (`org/name@revision`, then `/FILE`); a URL
is an error that names the remedy."""


def file_fault(model: Path | None, engine: str) -> str:
    """Return the reason why an engine cannot read a model of this name; empty if it can."""
    if model is None or is_gguf(model) == (engine == GGUF_ENGINE):
        return ""
    if is_gguf(model):
        return f"model: is {model}, a GGUF file, but engine is {engine}: set engine: {GGUF_ENGINE}"
    return f"model: is {model}, must be a GGUF file (*.gguf) with engine {GGUF_ENGINE}"


def is_hub_id(model: Path) -> bool:
    """Return True for a name of the hub; its revision distinguishes it from a folder."""
    return any(pattern.fullmatch(str(model)) for pattern in (HUB_ID, HUB_FILE))


def model_name(model: Path) -> str:
    """Return the name of a model that others may see: that of its folder or file, or `org/name@revision`."""
    if is_gguf(model):
        return model.stem
    return str(model) if is_hub_id(model) else model.resolve().name


def model_folder(model: Path, has_weights: bool = True, progress: type[Any] | None = None) -> Path:
    """Return the folder of a model; download a model of the hub unless this machine has it.

    `model` is a folder, which takes precedence, or `org/name@revision`: a branch, a tag or a commit. Of a
    GGUF file it is the folder with its tokenizer; without weights, only the head of one is downloaded.
    `progress` is the class of the hub client's progress bars, a tqdm.

    Raises:
        ModelError: The hub has no such model or revision, or it cannot be reached; a GGUF file is damaged.
    """
    if is_gguf(model) and not model.is_dir():
        is_head_enough = not (has_weights or model.is_file()) and is_hub_id(model)
        return _head_folder(model) if is_head_enough else tokenizer_folder(model_file(model, progress))
    found = HUB_ID.fullmatch(str(model))
    if model.is_dir() or found is None:
        return model
    with hub_errors(str(model)):
        patterns = MODEL_FILES if has_weights else TEXT_FILES
        return snapshot(found["repository"], found["revision"], patterns, tqdm_class=progress)


def _head_folder(model: Path) -> Path:
    """Return the folder with the tokenizer of a GGUF file of the hub; download its head unless it is here."""
    from huggingface_hub import HfFileSystem, try_to_load_from_cache

    found = HUB_FILE.fullmatch(str(model))
    assert found is not None

    def header() -> dict[str, Any]:
        files = HfFileSystem(skip_instance_cache=True)  # an instance remembers what was not there
        with files.open(name, block_size=0) as stream:
            return streamed_header(str(model), iter(partial(stream.read, _BLOCK_BYTES), b""))

    repository, revision, file = found["repository"], found["revision"], found["file"]
    with hub_errors(f"{repository}@{revision}"):
        try:
            commit = _hub_commit(repository, revision)
        except Exception:
            if not (commit := next(commits_of(repository, revision), "")):
                raise
        name = f"{repository}@{commit}/{file}"
        copy = try_to_load_from_cache(repository, file, revision=commit)
        if isinstance(copy, str):
            return tokenizer_folder(Path(copy))
        folder = named_folder(str(model), name, header)
        keep_commit(repository, revision, commit)
        return folder


def model_file(model: Path, progress: type[Any] | None = None) -> Path:
    """Return the GGUF file of a model; download one of the hub, with all its parts, unless it is here.

    Raises:
        ModelError: As `model_folder`.
    """
    found = HUB_FILE.fullmatch(str(model))
    if found is None or model.is_file():
        return model
    repository, revision, name = found["repository"], found["revision"], found["file"]
    with hub_errors(f"{repository}@{revision}"):
        parts = [*map(escape, part_names(name))]
        file = snapshot(repository, revision, parts, (), tqdm_class=progress) / name
    if not file.is_file():
        raise ModelError(f"{repository}@{revision}: the model hub has no file {name}, or cannot be reached")
    return file


def snapshot(
    repository: str,
    revision: str,
    patterns: Collection[str],
    excluded: Collection[str] = EXCLUDED_FILES,
    **options: Any,
) -> Path:
    """Return the folder of the hub client's copy, with the files of these patterns; raises its errors.

    The hub decides which commit a branch or a tag is. If it cannot be asked, or refuses, the newest copy here
    that has these files is used.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    options |= {"allow_patterns": [*patterns], "ignore_patterns": [*excluded]}
    try:
        commit = _hub_commit(repository, revision)
    except Exception:
        for kept in commits_of(repository, revision):
            with suppress(LocalEntryNotFoundError):
                return Path(snapshot_download(repository, revision=kept, local_files_only=True, **options))
        raise
    folder = Path(snapshot_download(repository, revision=commit, **options))
    keep_commit(repository, revision, commit)
    return folder


def _hub_commit(repository: str, revision: str) -> str:
    """Return the commit that a revision is on the hub; raises the client's errors."""
    from huggingface_hub import HfApi, constants

    if is_commit(revision):
        return revision
    limit = constants.HF_HUB_ETAG_TIMEOUT  # the client sets none for this call
    return HfApi().model_info(repository, revision=revision, timeout=limit).sha or revision


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Raise a ModelError of one line for a fault of the hub; `name` is the model, with its revision."""
    from httpx2 import ConnectError, TimeoutException
    from huggingface_hub import errors

    repository, _, revision = name.partition("@")
    try:
        yield
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectError, TimeoutException):
        reason = "the model hub cannot be reached (HF_HUB_OFFLINE, or no network)"
        remedy = f"fetch it where there is a network: flyserve pull hf://{name} FOLDER"
        raise ModelError(
            f"{name} is not on this machine, and {reason}: use a folder or a file, or {remedy}; a GGUF file:"
            f" hf download {repository} FILE"
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(
            f"{name}: the model hub has {repository}, but no revision {revision}: use a branch, a tag or a"
            " commit of it, or leave it out for the newest"
        ) from None
    except errors.GatedRepoError:
        raise ModelError(f"{name} is gated: ask for access on the model hub and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"{name}: no such folder, and no such model on the hub, or it is private and HF_TOKEN is not set"
        ) from None
    except ModelError:
        raise
    except Exception as error:  # any fault of the connection or the disk during the download
        raise ModelError(f"{name} cannot be downloaded from the model hub: {describe(error)}") from error
