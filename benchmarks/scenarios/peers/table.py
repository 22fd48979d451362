"""The one table of all ways in all places, who wins where, and the goals. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.harness.report import Table
from benchmarks.harness.runs import Parts, Run, Runs, compare, compare_prompts
from benchmarks.harness.statistics import Goal, Spread
from benchmarks.scenarios.peers.plan import BASELINE, PARTS, REAL, WAYS, Kind
from flyserve.bench.statistics import speed

BEST_PUBLISHED = 2.03
"""Greatest speed-up by drafts that is published for a public model on CPUs (llama.cpp, Qwen2.5-Coder 3B)."""
_ASKED = {Kind.PLAIN: "token by token", Kind.SAME: "any way, the same text", Kind.FLY: "any way, FLy too"}
"""Comparisons that a user makes, by the last kind of way that may answer them."""


@dataclass(frozen=True, slots=True)
class Duel:
    """The fastest of FlyServe's ways in one place beside the fastest other one.

    Attributes:
        ratio: Speed of `ours` relative to `other`, with the prompts at both ends.
    """

    ours: str
    other: str
    ratio: Spread

    def __str__(self) -> str:
        """Return the side that is faster on every prompt, and FlyServe's speed relative to the other one."""
        beside = f"{self.ratio.value:.2f}x {self.other}"
        if self.ratio.least > 1:
            return f"**FlyServe**, {beside}"
        if self.ratio.most < 1:
            return f"{self.other}: FlyServe {self.ratio.value:.2f}x"
        return f"mixed, {beside}"


def places(parts: Parts) -> dict[str, Runs]:
    """Return the runs by place: the kind of prompts, and the number of threads."""
    return {
        f"{kind}, {threads} thread{'s' if threads > 1 else ''}": runs
        for part, (_, threads) in PARTS.items()
        for kind, runs in parts.get(part, {}).items()
    }


def whole(tables: Mapping[str, Runs]) -> Runs:
    """Return the runs of all kinds of prompts of a part together; each prompt has a number of its own."""
    numbered, names = list(enumerate(tables.values())), next(iter(tables.values()))
    return {
        name: [
            replace(run, prompt=run.prompt * len(numbered) + kind)
            for kind, runs in numbered
            for run in runs[name]
        ]
        for name in names
    }


def all_ways(parts: Parts) -> Table:
    """Return the table of every way in every place: tokens per second, and the ratio to the baseline."""
    found = places(parts)
    names = [name for name in WAYS if any(name in runs for runs in found.values())]
    rows = (tuple(_cell(runs, name) for runs in found.values()) for name in names)
    lines = tuple((name, *cells) for name, cells in zip(names, rows, strict=True))
    return Table("All ways", ("tokens/s", *found), lines)


def _cell(runs: Runs, name: str) -> str:
    if name not in runs:
        return "-"
    return f"{speed(runs[name]):.0f} ({compare(runs[name], runs[BASELINE]).value:.2f}x)"


def winners(parts: Parts) -> Table:
    """Return the table of the winner in every place, for each number of bits and what a user asks for."""
    found, lines = places(parts), list[tuple[str, ...]]()
    for bits in sorted({way.bits for way in WAYS.values()}, reverse=True):
        for asked, label in _ASKED.items():
            duels = [duel(runs, bits, asked) for runs in found.values()]
            if any(duels):
                lines.append((f"{bits} bits, {label}", *(str(each or "-") for each in duels)))
    return Table("Winners", ("", *found), tuple(lines))


def duel(runs: Runs, bits: int, asked: Kind) -> Duel | None:
    """Return the fastest on both sides of the ways that may answer; None if a side has none."""
    kinds = tuple(Kind)
    allowed = kinds[: kinds.index(asked) + 1]
    able = [name for name in runs if WAYS[name].bits == bits and WAYS[name].kind in allowed]
    sides = [[name for name in able if WAYS[name].is_ours is is_ours] for is_ours in (True, False)]
    if not all(sides):
        return None
    ours, other = (max(side, key=lambda name: speed(runs[name])) for side in sides)
    return Duel(ours, other, compare_prompts(runs[ours], runs[other]))


def make_goals(parts: Parts) -> Iterator[Goal]:
    """Yield the goals of the real model: plain decoding beside llama.cpp and vLLM, and the gain of drafts."""
    real = {part: tables for part, tables in parts.items() if PARTS[part][0] == REAL}
    for part, tables in real.items():
        runs, name = whole(tables), f"{PARTS[part][1]} thread(s)"
        yield _goal(f"token by token, {name}", runs["FlyServe plain"], runs["llama.cpp f16"], 1.0)
        if "vLLM generate" in runs:
            ours = runs["FlyServe on vLLM plain"]
            yield _goal(f"token by token on vLLM, {name}", ours, runs["vLLM generate"], 1.0)
    for place, runs in places(real).items():
        yield _goal(f"drafts, {place}", runs["FlyServe exact"], runs["FlyServe plain"], BEST_PUBLISHED)


def _goal(name: str, own: Sequence[Run], base: Sequence[Run], limit: float) -> Goal:
    return Goal(name, limit, compare_prompts(own, base))
