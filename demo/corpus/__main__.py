"""`python -m demo.corpus SPLIT COUNT`: print problems as prompts of `flyserve calibrate`."""

import json
import sys
from itertools import islice

from demo.corpus import Family, Split, problems

_SEED = 4_2026
"""The seed of `python -m benchmarks quality`."""


def main(split: str, count: str) -> None:
    """Print the problems, a JSON object a line."""
    sources = [(family, problems(_SEED, Split(split), family)) for family in Family]
    drawn = (
        (family, problem)
        for turn in zip(*(s for _, s in sources), strict=True)
        for family, problem in zip((f for f, _ in sources), turn, strict=True)
    )
    for family, problem in islice(drawn, int(count)):
        print(json.dumps({"prompt": problem.prompt, "answer": problem.answer, "family": family.value}))


if len(sys.argv) != 3 or sys.argv[1] not in [*Split] or not sys.argv[2].isdecimal():
    sys.exit(f"usage: python -m demo.corpus {'|'.join(Split)} COUNT")
main(*sys.argv[1:])
