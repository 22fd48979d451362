"""Parse the JSON of a body into a checked model.

Every fault has its field, and an unknown field the nearest known one. Fields of OpenAI and vLLM that FlyServe
does not support are rejected by name, unless they request nothing.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fly.errors import FieldViolation, InvalidRequest
from services.common.config import MESSAGE_PREFIX, nearest, section_at

IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "user",
    }
)
"""Fields without effect on the response: accepted with any value."""

_NONE: tuple[Any, ...] = ()
_EMPTY: tuple[Any, ...] = ([], {})
_FALSE: tuple[Any, ...] = (False,)
_TRUE: tuple[Any, ...] = (True,)

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "tools": _EMPTY,
    "tool_choice": ("none", "auto"),
    "functions": _EMPTY,
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": _NONE,
    "guided_json": _NONE,
    "guided_regex": _NONE,
    "guided_choice": _NONE,
    "guided_grammar": _NONE,
    "guided_decoding_backend": _NONE,
    "guided_whitespace_pattern": _NONE,
    "json_schema": _NONE,
    "regex": _NONE,
    "ebnf": _NONE,
    "modalities": (["text"],),
    "audio": _NONE,
    "prediction": _NONE,
    "reasoning_effort": ("none",),
    "verbosity": _NONE,
    "web_search_options": _NONE,
    "service_tier": ("auto", "default"),
    "store": _FALSE,
    "best_of": (1,),
    "suffix": ("",),
    "echo": _FALSE,
    "use_beam_search": _FALSE,
    "length_penalty": (1.0,),
    "early_stopping": _FALSE,
    "truncate_prompt_tokens": _NONE,
    "prompt_logprobs": _NONE,
    "allowed_token_ids": _NONE,
    "bad_words": _EMPTY,
    "logits_processors": _EMPTY,
    "include_stop_str_in_output": _FALSE,
    "skip_special_tokens": _TRUE,
    "spaces_between_special_tokens": _TRUE,
    "add_special_tokens": _NONE,
    "return_tokens_as_token_ids": _FALSE,
    "return_token_ids": _FALSE,
    "add_generation_prompt": _TRUE,
    "continue_final_message": _FALSE,
    "chat_template": _NONE,
    "documents": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    "thinking": _NONE,
    "priority": (0,),
}
"""Accepted values by field name, in addition to null: they request nothing."""


def drop_unsupported(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those that request nothing; raise InvalidRequest for unsupported features."""
    asked = [name for name in data if name in UNSUPPORTED and not _asks_nothing(name, data[name])]
    if asked:
        raise InvalidRequest(*map(_unsupported, asked))
    return {name: value for name, value in data.items() if name not in UNSUPPORTED and name not in IGNORED}


def _asks_nothing(name: str, value: Any) -> bool:
    """Compare with the accepted values; a truth value does not equal a number here."""
    idle_values = [idle for idle in UNSUPPORTED[name] if isinstance(idle, bool) == isinstance(value, bool)]
    return value is None or value in idle_values


def _unsupported(name: str) -> FieldViolation:
    idle = " or ".join(_shown(value) for value in UNSUPPORTED[name])
    found = "is not supported" + (f", only {idle} is" if idle else "")
    return FieldViolation(name, found, "unsupported_parameter")


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


M = TypeVar("M", bound=BaseModel)

_SHOWN_CHARACTERS = 60
_TYPE_FAULTS = ("_type", "_parsing", "is_instance_of")


def parse(model: type[M], data: Mapping[str, Any]) -> M:
    """Return the request; raise InvalidRequest with every fault."""
    supported = drop_unsupported(data)
    try:
        return model.model_validate(supported)
    except ValidationError as error:
        raise InvalidRequest(
            *(_violation(model, fault) for fault in error.errors(include_url=False))
        ) from None


def _reason(fault: Mapping[str, Any]) -> str:
    kind = str(fault["type"])
    known = {
        "missing": "missing_required_parameter",
        "extra_forbidden": "unknown_parameter",
        "unsupported": "unsupported_parameter",
    }
    return known.get(kind, "invalid_type" if kind.endswith(_TYPE_FAULTS) else "invalid_value")


def _violation(model: type[BaseModel], fault: Mapping[str, Any]) -> FieldViolation:
    return FieldViolation(_path(fault["loc"]), _description(model, fault), _reason(fault))


def _description(model: type[BaseModel], fault: Mapping[str, Any]) -> str:
    match fault["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"is unknown{_nearest(model, fault['loc'])}"
        case "value_error" | "unsupported":
            return str(fault["msg"]).removeprefix(MESSAGE_PREFIX)
    shown = repr(fault["input"])
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[: _SHOWN_CHARACTERS - 3] + "..."
    return f"is {shown}, {str(fault['msg']).replace('Input should', 'must', 1)}"


def _path(location: tuple[int | str, ...]) -> str:
    """Return a path such as `messages[0].content`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{_name(part)}" if path else _name(part)
    return path


def _name(part: str) -> str:
    """Return a name as the client wrote it, or an escaped and shortened form if it does not fit on a line."""
    is_plain = part.isprintable() and len(part) <= _SHOWN_CHARACTERS
    return part if is_plain else ascii(part[:_SHOWN_CHARACTERS])


def _nearest(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    further = UNSUPPORTED if len(location) == 1 else ()
    fields = getattr(section_at(model, location), "model_fields", {})
    near = nearest(str(location[-1]), (*fields, *further))
    return f", did you mean {near}?" if near else ""
