"""Which drafters and targets understand each other."""

from fly.messages import ModelInfo


def mismatch(target: ModelInfo, drafter: ModelInfo) -> str | None:
    """Why this drafter cannot draft for this target; None where it can.

    An empty token map hash takes any: a look-up engine continues ids without knowing what they mean.
    """
    if not target.token_map_hash or not drafter.token_map_hash:
        return None
    if target.token_map_hash == drafter.token_map_hash:
        return None
    return f"their token maps differ (target {target.token_map_hash}, drafter {drafter.token_map_hash})"
