"""Parse the JSON of a body into a checked model.

Every fault has its field, and the first unknown fields the nearest known ones. Fields of OpenAI and vLLM that
FlyServe does not support are rejected by name, unless they request nothing.
"""

import reprlib
from collections.abc import Container, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fly.errors import FieldViolation, InvalidRequest, refuse
from fly.request import POLICY_REMEDY
from router.config import LimitsConfig
from services.common.config_faults import nearest, requirement
from services.common.sections import section_at

IGNORED = frozenset({"metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "user"})
"""Fields without effect on the response: accepted with any value."""


def _accepting(values: tuple[Any, ...], *names: str) -> dict[str, tuple[Any, ...]]:
    return dict.fromkeys(names, values)


UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    **_accepting(([], {}), "tools", "functions", "documents", "mm_processor_kwargs"),
    **_accepting(([], {}), "bad_words", "logits_processors"),
    **_accepting(("none", "auto"), "tool_choice", "function_call"),
    **_accepting((), "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object"),
    **_accepting((), "guided_decoding_backend", "guided_whitespace_pattern"),
    **_accepting((), "json_schema", "regex", "ebnf"),
    **_accepting((), "audio", "verbosity", "web_search_options", "thinking", "chat_template"),
    **_accepting((), "truncate_prompt_tokens", "prompt_logprobs", "allowed_token_ids", "add_special_tokens"),
    **_accepting((False,), "store", "echo", "use_beam_search", "early_stopping", "continue_final_message"),
    **_accepting((False,), "return_tokens_as_token_ids", "return_token_ids", "include_stop_str_in_output"),
    **_accepting((True,), "skip_special_tokens", "spaces_between_special_tokens", "add_generation_prompt"),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "best_of": (1,),
    "suffix": ("",),
    "length_penalty": (1.0,),
}
"""Accepted values by field name, in addition to null: they request nothing."""
_REMEDIES = {
    "best_of": "use n",
    "guided_json": "use response_format or structured_outputs.json",
    "guided_regex": "use structured_outputs.regex",
    "guided_choice": "use structured_outputs.choice",
    "guided_grammar": "use structured_outputs.grammar",
    "guided_json_object": "use response_format",
    "json_schema": "use response_format or structured_outputs.json",
    "regex": "use structured_outputs.regex",
    "ebnf": "use structured_outputs.grammar",
    "speculation.draft_length.policy": POLICY_REMEDY,
}


def drop_unsupported(data: Mapping[str, Any], supported: Container[str] = ()) -> dict[str, Any]:
    """Return the fields without those that request nothing; raise InvalidRequest for unsupported features.

    Fields in `supported` are left as they are.
    """
    others = {name: value for name, value in data.items() if name not in supported}
    asked = [name for name in others if name in UNSUPPORTED and not _asks_nothing(name, data)]
    refuse(_unsupported(name, data[name]) for name in asked)
    idle = {name for name in others if name in UNSUPPORTED or name in IGNORED}
    return {name: value for name, value in data.items() if name not in idle}


def _asks_nothing(name: str, data: Mapping[str, Any]) -> bool:
    """Compare with the accepted values; a truth value does not equal a number here.

    The best of n choices are all of them if there are n.
    """
    value = data[name]
    accepted = (*UNSUPPORTED[name], data.get("n")) if name == "best_of" else UNSUPPORTED[name]
    idle_values = [idle for idle in accepted if isinstance(idle, bool) == isinstance(value, bool)]
    return value is None or value in idle_values


def _unsupported(name: str, value: Any) -> FieldViolation:
    if name in _REMEDIES:
        found = f"is {shown(value)}, is not supported: {_REMEDIES[name]}"
        return FieldViolation(name, found, "unsupported_parameter")
    idle = " or ".join(_shown(value) for value in UNSUPPORTED[name])
    found = "is not supported" + (f", only {idle} is" if idle else "")
    return FieldViolation(name, found, "unsupported_parameter")


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


M = TypeVar("M", bound=BaseModel)

_SHOWN_CHARACTERS = 60
_MOST_SUGGESTIONS = 3
"""Unknown fields of one body for which the nearest known one is looked up."""
_TYPE_FAULTS = ("_type", "_parsing", "is_instance_of")


def parse(model: type[M], data: Mapping[str, Any], limits: LimitsConfig) -> M:
    """Return the request; raise InvalidRequest with its first faults."""
    _refuse_many_fields(model, data)
    supported = drop_unsupported(data, model.model_fields)
    try:
        return model.model_validate(supported, context=limits)
    except ValidationError as error:
        refuse(_violations(model, error.errors(include_url=False)))
        raise


def _refuse_many_fields(model: type[BaseModel], data: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a body with more fields than there are, without looking at all of them."""
    if len(data) > len(model.model_fields) + len(UNSUPPORTED) + len(IGNORED):
        known = {*model.model_fields, *UNSUPPORTED, *IGNORED}
        first = next(name for name in data if name not in known)
        found = f"is unknown; the body has {len(data)} fields, at most {len(known)} are known"
        raise InvalidRequest(FieldViolation(_name(first), found, "unknown_parameter"))


def _violations(model: type[BaseModel], faults: list[Any]) -> Iterator[FieldViolation]:
    """Yield the violations, some of those of unknown fields with a suggestion."""
    num_unknown = 0
    for fault in faults:
        num_unknown += fault["type"] == "extra_forbidden"
        suggests = num_unknown <= _MOST_SUGGESTIONS
        yield FieldViolation(_path(fault["loc"]), _description(model, fault, suggests), _reason(fault))


def _reason(fault: Mapping[str, Any]) -> str:
    kind = str(fault["type"])
    known = {
        "missing": "missing_required_parameter",
        "extra_forbidden": "unknown_parameter",
        "unsupported": "unsupported_parameter",
    }
    return known.get(kind, "invalid_type" if kind.endswith(_TYPE_FAULTS) else "invalid_value")


def _description(model: type[BaseModel], fault: Mapping[str, Any], suggests: bool) -> str:
    match fault["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            if remedy := _REMEDIES.get(_path(fault["loc"])):
                return f"is not supported: {remedy}"
            return f"is unknown{_nearest(model, fault['loc']) if suggests else ''}"
        case "value_error" | "unsupported" | "too_many":
            return requirement(fault)
    return f"is {shown(fault['input'])}, {requirement(fault)}"


class _Shown(reprlib.Repr):
    """Short forms of values; of a list or object in another only that there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlong = 1, _SHOWN_CHARACTERS

    def repr_str(self, x: str, level: int) -> str:
        return repr(x[: _SHOWN_CHARACTERS + 1])

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        return super().repr_dict(x, level) if len(x) <= self.maxdict else f"an object of {len(x)} fields"


def shown(value: Any) -> str:
    """Return the beginning of a value of a body as text; its length and time do not grow with the value."""
    text = _Shown().repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


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
    names = (field.alias or name for name, field in fields.items())
    near = nearest(str(location[-1]), (*names, *further))
    return f", did you mean {near}?" if near else ""
