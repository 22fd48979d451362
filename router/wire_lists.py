"""Limits of lists and maps in the messages of the public service: checked before their items are read."""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import Message

from fly.errors import FieldViolation, refuse
from router.config import LimitsConfig

LIMITS: Mapping[str, str | int] = {
    "TokenIds.ids": "prompt_characters",
    "GenerateRequest.stop": "stop_strings",
    "SamplingParams.stop_token_ids": "listed_tokens",
    "SamplingParams.logit_bias": "listed_tokens",
    "SpeculationParams.exact_in": 64,
    "Resumption.choices": "choices",
    "ReceivedChoice.token_ids": "max_new_tokens",
    "TokenizeRequest.messages": "items",
}
"""Key of `router.limits`, or a number, by message and field."""


def check_lists(message: Message, limits: LimitsConfig) -> None:
    """Raise InvalidRequest with the lists and maps of a request that have too many items."""
    refuse(_violations(message, limits, ""))


def _violations(message: Any, limits: LimitsConfig, path: str) -> Iterator[FieldViolation]:
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if not field.is_repeated:
            if field.message_type is not None:
                yield from _violations(value, limits, f"{name}.")
        elif found := _excess(field, len(value), limits):
            yield FieldViolation(name, found)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for index, item in enumerate(value):
                yield from _violations(item, limits, f"{name}[{index}].")


def _excess(field: Any, number: int, limits: LimitsConfig) -> str:
    """Return the description of a list that has too many items, else an empty text."""
    limit = LIMITS[f"{field.containing_type.name}.{field.name}"]
    most = limit if isinstance(limit, int) else int(getattr(limits, limit))
    key = "" if isinstance(limit, int) else f" (router.limits.{limit})"
    return f"has {number} items, at most {most} are allowed{key}" if number > most else ""
