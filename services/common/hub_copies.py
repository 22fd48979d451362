"""Copies in the hub client's cache by the revisions that people write: which commits a revision stood for.

The client's own `refs/main` names one commit, as other tools expect. Files of one revision may lie at several
commits, since `main` moves between two fetches; `flyserve/main/COMMIT` beside it names each of them.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from services.common.home import expanded

_COMMIT = re.compile(r"[0-9a-f]{40}")
_OWN = "flyserve"


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def keep_commit(repository: str, revision: str, commit: str) -> None:
    """Let a revision stand for a commit whose copy is complete; a cache that is only read stays as it is."""
    folder = _cache(repository)
    if is_commit(revision):
        return
    with suppress(OSError):
        for path in (folder / _OWN / revision / commit, folder / "refs" / revision):
            path.parent.mkdir(parents=True, exist_ok=True)
            begun = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
            begun.write_text(commit, encoding="utf-8")
            begun.replace(path)


def commits_of(repository: str, revision: str) -> Iterator[str]:
    """Yield the commits that a revision has stood for here, the newest first."""
    folder = _cache(repository)
    with suppress(OSError, UnicodeDecodeError):
        if is_commit(commit := (folder / "refs" / revision).read_text(encoding="utf-8").strip()):
            yield commit
    with suppress(OSError):
        kept = sorted((folder / _OWN / revision).iterdir(), key=lambda path: -path.stat().st_mtime_ns)
        yield from (path.name for path in kept if is_commit(path.name))


def listed_files(repository: str, commit: str) -> dict[str, int]:
    """Return the sizes of all files of a commit, by name; empty if the client has never listed them."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    with suppress(CachedRepoTreeNotFoundError):
        return {file.path: file.size for file in get_cached_repo_tree(repository, revision=commit)}
    return {}


def _cache(repository: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return expanded(Path(constants.HF_HUB_CACHE)) / repo_folder_name(repo_id=repository, repo_type="model")
