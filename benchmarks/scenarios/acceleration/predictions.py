"""Predictions of responses: the response itself, one with three changes, one of another prompt. Pure."""

import random
import re
from collections.abc import Mapping, Sequence

WITHOUT, CHANGED, UNRELATED, SAME = "without", "three changes", "unrelated", "the response"
_NUMBER = re.compile(r"\d+")
_WORDS = ("green", "happy", "seven", "under", "river")
_CHANGED_WORDS, _CHANGED_NUMBERS = 2, 1


def predictions(responses: Sequence[str], seed: int = 3) -> Mapping[str, Sequence[str]]:
    """Return the prediction of every response under every setting; there are at least two responses."""
    source = random.Random(seed)
    return {
        WITHOUT: [""] * len(responses),
        CHANGED: [changed(response, source) for response in responses],
        UNRELATED: [*responses[1:], responses[0]],
        SAME: responses,
    }


def changed(text: str, source: random.Random) -> str:
    """Return the text with another number and two other words, if it has them."""
    words = text.split(" ")
    numbers = [index for index, word in enumerate(words) if _NUMBER.search(word)]
    plain = [index for index, word in enumerate(words) if word.isalpha()]
    for index in source.sample(numbers, min(_CHANGED_NUMBERS, len(numbers))):
        words[index] = _NUMBER.sub(_next_number, words[index], count=1)
    for index in source.sample(plain, min(_CHANGED_WORDS, len(plain))):
        words[index] = source.choice([word for word in _WORDS if word != words[index]])
    return " ".join(words)


def _next_number(found: re.Match[str]) -> str:
    return str(int(found[0]) + 1)
