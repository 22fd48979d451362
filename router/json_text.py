"""JSON that is a text of its own: arguments of calls, schemas, names in a model's answer."""

from typing import Any

import pydantic_core


def parse_json_text(text: str, has_constants: bool = True) -> Any:
    """Return the value of a JSON text; raise ValueError if it is none, or nested too deep.

    It has the rules of bodies: no text has half of a surrogate pair, which neither a tokenizer nor a response
    can take. With `has_constants`, NaN and Infinity are numbers, as Python's own parser has it.
    """
    return pydantic_core.from_json(text, allow_inf_nan=has_constants)
