"""Check that a drafter and a target can work together. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from flyserve.core.messages import ModelInfo
from router.replicas.replica import Replica


def engine_name(info: ModelInfo) -> str:
    """Return the name of the engine that runs a model."""
    return info.engine or "the builtin engine"


def incompatibility(target: ModelInfo, drafter: ModelInfo) -> str | None:
    """Return why this drafter cannot draft for this target; None if it can.

    An empty token map hash matches any: a look-up engine continues ids without a vocabulary.
    """
    if not target.token_map_hash or not drafter.token_map_hash:
        return None
    if target.token_map_hash == drafter.token_map_hash:
        return None
    found = f"their token maps differ (target {target.token_map_hash}, drafter {drafter.token_map_hash})"
    return f"{found}; drafter.vocabulary: text maps them"


def misfits(targets: Iterable[Replica], drafters: Sequence[Replica]) -> Iterator[str]:
    """Yield the reason for each pair of them that cannot work together."""
    for target in targets:
        for drafter in drafters:
            if (reason := incompatibility(target.info, drafter.info)) is not None:
                yield f"{drafter.name} cannot draft for {target.name}: {reason}"
