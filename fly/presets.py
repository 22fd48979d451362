"""The named rules (DESIGN 4.3) and the parameters that they stand for."""

import math

from fly.types import EntropyEstimator, FlyRule, Tail

DEFAULT_PRESET = "vllm"
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
        tail=Tail.CARRY,
        carry_after=2,
        guard_stops=True,
        guard_excluded=True,
        strict_prefix_tokens=2,
    ),
}
