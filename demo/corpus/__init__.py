"""A seeded corpus of checkable tasks in which wording is free and content is fixed."""

import random
from collections.abc import Iterator
from itertools import islice

from demo.corpus.lookups import lookup
from demo.corpus.traces import trace
from demo.corpus.types import Family, Problem, Split, Style, is_held_out
from demo.corpus.word_problems import word_problem
from flyserve.bench.tasks import is_correct

__all__ = ["Family", "Problem", "Split", "Style", "check", "draw", "generate", "problems"]

_QUESTIONS = 3
_STARTS = range(5, 61)
_HARD_STARTS = range(61, 96)


def draw(rng: random.Random, split: Split, family: Family, style: Style) -> Problem:
    """Draw one problem of a split and family; successive draws may repeat."""
    if split is Split.HARD:
        return _draw_hard(rng, family, style)
    while True:
        problem = _draw_any(rng, family, style)
        if is_held_out(problem.content) == (split is Split.HELD_OUT):
            return problem


def problems(seed: int, split: Split, family: Family, style: Style | None = None) -> Iterator[Problem]:
    """Yield distinct problems without end; the same arguments give the same problems."""
    rng = random.Random(f"{seed}/{split}/{family}")
    seen: set[str] = set()
    while True:
        problem = draw(rng, split, family, style or Style())
        if problem.content not in seen:
            seen.add(problem.content)
            yield problem


def generate(
    seed: int, split: Split, family: Family, count: int, style: Style | None = None
) -> list[Problem]:
    """Return the first `count` of `problems`."""
    return list(islice(problems(seed, split, family, style), count))


def check(problem: Problem, response: str) -> bool:
    """Check that a response solves the problem."""
    return is_correct(response, problem.answer)


def _draw_any(rng: random.Random, family: Family, style: Style) -> Problem:
    match family:
        case Family.WORD_PROBLEM:
            return word_problem(rng, rng.randint(3, 5), _STARTS, style)
        case Family.LOOKUP:
            return lookup(rng, rng.randint(5, 8), _QUESTIONS, style)
        case Family.TRACE:
            return trace(rng, rng.randint(4, 6), style)


def _draw_hard(rng: random.Random, family: Family, style: Style) -> Problem:
    """Draw what cannot be drawn otherwise: larger numbers, a longer paragraph, a longer program."""
    match family:
        case Family.WORD_PROBLEM:
            return word_problem(rng, 5, _HARD_STARTS, style)
        case Family.LOOKUP:
            return lookup(rng, rng.randint(9, 12), _QUESTIONS, style)
        case Family.TRACE:
            return trace(rng, 7, style)
