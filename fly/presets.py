"""The named rules and the parameters that they stand for."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fly.rule import tail_length
from fly.types import EntropyEstimator, FlyRule, TailPolicy

DEFAULT_PRESET = "flyserve"
"""What `fly` starts from where neither request nor configuration names a rule."""

EXACT = FlyRule(threshold=math.inf, window=1, min_following=1, guard_stops=True)
"""Only the target's own tokens are kept."""

PRESETS = {
    # AMD's code, token for token, at temperature 0 and a fixed draft length, up to the first end-of-sequence.
    "official": FlyRule(threshold=0.3, window=5, min_following=6),
    "vllm": FlyRule(threshold=0.3, window=6, min_following=6, shrinks=True, guard_excluded=True),
    # Nearly strict in practice: 0.3 of ln |V| is 3.5 nats at a vocabulary of 128k.
    "paper": FlyRule(threshold=0.3, window=6, min_following=6, entropy=EntropyEstimator.NORMALIZED),
    "flyserve": FlyRule(
        threshold=0.3,
        window=6,
        min_following=6,
        tail=TailPolicy.CARRY,
        carry_after=2,
        guard_stops=True,
        guard_excluded=True,
        strict_prefix_tokens=2,
    ),
}


def tuned(rule: FlyRule, changes: Mapping[str, Any]) -> FlyRule:
    """A rule with some of its fields changed.

    What must follow a mismatch in its draft keeps its distance from the window. A window that is carried
    needs neither: no draft has to be longer for it, and none makes it shrink.

    Args:
        rule: What to start from.
        changes: New values by the names of the rule's fields.
    """
    changed = replace(rule, **changes)
    beyond = rule.min_following - rule.window
    changed = replace(changed, min_following=changed.window + beyond)
    if changes.get("tail") is TailPolicy.CARRY:
        changed = replace(changed, min_following=changed.window, shrinks=False)
    return changed


def can_rescue(rule: FlyRule, draft_length: int) -> bool:
    """Whether any mismatch can be kept with drafts of this length: whether its window can be filled."""
    return tail_length(rule, draft_length) < draft_length
