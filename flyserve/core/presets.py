"""The named rules (presets) and their parameters."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flyserve.core.rule import tail_length
from flyserve.core.types import EntropyEstimator, FlyRule, TailPolicy

DEFAULT_PRESET = "flyserve"
"""The preset of mode `fly` if neither the request nor the configuration names one."""

EXACT = FlyRule(threshold=math.inf, window=1, min_following=1, guard_stops=True)
"""The rule of mode `exact`: accept only the target's own tokens."""

PRESETS = {
    # Gives the same tokens as AMD's code at temperature 0 and a fixed draft length, up to the first
    # end-of-sequence token. That code drafts from the first round on, at full length up to the last one.
    "official": FlyRule(threshold=0.3, window=5, min_following=6, reproducible_drafts=True),
    "vllm": FlyRule(threshold=0.3, window=6, min_following=6, shrinks=True, guard_excluded=True),
    # The threshold in the paper's unit. Nearly exact in practice: 0.3 of ln |V| is 3.5 nats if |V| is 128k.
    "paper": FlyRule(threshold=0.3, window=6, min_following=6, entropy=EntropyEstimator.NORMALIZED),
    # With a limit on the gap, a longer window rejects few bad rescues and many good ones
    # (docs/decisions/logprob-gap.md). No window is carried: the two matches that it needs fill it.
    "flyserve": FlyRule(
        threshold=0.3,
        window=2,
        min_following=2,
        guard_stops=True,
        guard_excluded=True,
        strict_prefix_tokens=2,
        max_logprob_gap=0.45,
    ),
}


def tuned(rule: FlyRule, changes: Mapping[str, Any]) -> FlyRule:
    """Return the rule with some fields changed; raise TypeError for a name that is not a field of `FlyRule`.

    `min_following` keeps its distance from `window`. If the tail is changed to `carry`, `min_following`
    becomes the window and `shrinks` becomes false: the next draft fills the window, so no draft has to be
    longer for it, and a short draft does not make it smaller.
    """
    changed = replace(rule, **changes)
    distance = rule.min_following - rule.window
    changed = replace(changed, min_following=changed.window + distance)
    if changes.get("tail") is TailPolicy.CARRY:
        changed = replace(changed, min_following=changed.window, shrinks=False)
    return changed


def can_rescue(rule: FlyRule, draft_length: int) -> bool:
    """Return True if the rule can rescue any mismatch in drafts of `draft_length` tokens."""
    return tail_length(rule, draft_length) < draft_length
