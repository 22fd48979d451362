"""The nouns of the corpus: families, splits, styles and problems."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """A kind of task with its own generator and its own form of answer."""

    WORD_PROBLEM = "word_problem"
    LOOKUP = "lookup"
    TRACE = "trace"


class Split(StrEnum):
    """The problems that may be drawn.

    `TRAIN` and `HELD_OUT` have the same difficulty and are separated by a hash of the content, so that no
    problem is in both, whatever its wording. `HARD` has longer programs and paragraphs and larger numbers
    than either.
    """

    TRAIN = "train"
    HELD_OUT = "held_out"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Style:
    """Preferences among equally good wordings.

    Attributes:
        shift: Share of the wording choices, 0 to 1, whose favourite differs from that of `Style(0.0)`.
    """

    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Problem:
    """One task with a reference response.

    Attributes:
        family: The task's family.
        prompt: What the user asks, one line.
        response: A correct response, whose last words are `Answer: ` and the answer.
        answer: The answer in the form that `check` compares.
        content: The problem without its wording; two problems are the same task if this is equal.
    """

    family: Family
    prompt: str
    response: str
    answer: str
    content: str


HELD_OUT_ONE_IN = 8


def is_held_out(content: str) -> bool:
    """Check that a content is kept from training: one in `HELD_OUT_ONE_IN`, by a hash."""
    return hashlib.blake2b(content.encode(), digest_size=4).digest()[0] % HELD_OUT_ONE_IN == 0
