"""The words of this project for what pydantic finds wrong."""

import re
from typing import Any

_WORDS = (
    (r"^Value error, ", ""),  # before the message of a model's own validator
    (r"^(Input|Value|String|List|Tuple|Set|Dictionary|Number|URL|Path) should ", "must "),
    (r", (unable to parse|got a number with a fractional part|unable to interpret).*", ""),
    (r"greater than or equal to", "at least"),
    (r"less than or equal to", "at most"),
    (r"greater than", "above"),
    (r"less than", "below"),
    (r"a valid integer", "an integer"),
    (r"a valid (?=\w)", "a "),
)
"""Patterns in the messages of pydantic, and the words of this project for them."""


def requirement(fault: Any) -> str:
    """Return the limit that a fault of pydantic breaks, such as `must be at least 1`."""
    message = str(fault["msg"])
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message, count=1)
    return message
