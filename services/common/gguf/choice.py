"""The GGUF file of a repository that a name means: a path, a quantization, or the only one. Pure."""

import re
from collections.abc import Collection, Iterable

from flyserve.core.errors import ModelError
from services.common.gguf.header import SUFFIX, part_names

_COMPANIONS = ("mmproj", "imatrix")
"""Words in the names of files that hold no language model."""
_MOST_LISTED = 20


def choose_file(repository: str, names: Iterable[str], wanted: str) -> str:
    """Return the file that `wanted` means; of a model in parts, the first one.

    Args:
        repository: Name for messages.
        names: Paths of all files of the repository.
        wanted: Path of a file, a quantization such as `Q4_K_M`, or empty for the only model.

    Raises:
        ModelError: No file fits, or several do; the message lists them.
    """
    models = sorted(filter(_is_model, names))
    if wanted.endswith(SUFFIX):
        fitting = [name for name in models if name == wanted]
    else:
        fitting = [name for name in models if not wanted or _is_of_kind(name, wanted)]
    if not fitting:
        raise ModelError(f"{repository} has no GGUF file {wanted}; it has {_listed(models)}")
    if len(fitting) > 1:
        several = f"{repository}:{wanted} means several" if wanted else f"{repository} has several"
        raise ModelError(
            f"{several} GGUF files ({_listed(fitting)}): name one, such as {repository}/{fitting[0]}"
        )
    return fitting[0]


def _is_model(name: str) -> bool:
    is_companion = any(word in name.rpartition("/")[2].lower() for word in _COMPANIONS)
    return name.endswith(SUFFIX) and not is_companion and part_names(name)[0] == name


def _is_of_kind(name: str, kind: str) -> bool:
    """Check that a path has the name of a quantization as a word, in any case of letters."""
    pattern = rf"(^|[-._/]){re.escape(kind)}([-./]|$)"
    return re.search(pattern, name.removesuffix(SUFFIX), re.IGNORECASE) is not None


def _listed(names: Collection[str]) -> str:
    shown = ", ".join([*names][:_MOST_LISTED]) or "none"
    more = len(names) - _MOST_LISTED
    return shown + (f" and {more} more" if more > 0 else "")
