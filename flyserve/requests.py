"""Requests as a program writes them: keyword arguments become the fields of a request."""

import difflib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypedDict, TypeVar

from flyserve.core.errors import InvalidRequest
from flyserve.core.grammar import Grammar
from flyserve.core.request import ChatMessage, DraftLength, GenerateRequest, SamplingParams, SpeculationParams
from flyserve.core.spans import Span
from flyserve.core.types import Coupling, EntropyEstimator, Mode, TailPolicy

Prompt = str | Sequence[int]
"""Text, or token ids."""
Messages = str | Sequence[ChatMessage | Mapping[str, str]]
"""A conversation: messages with `role` and `content`, or the text of a single message of the user."""
P = TypeVar("P", SamplingParams, SpeculationParams)


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments for the fields of `SamplingParams`, which describes them."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: Sequence[int]
    seed: int | None
    coupling: Coupling | str


class SpeculationOptions(TypedDict, total=False):
    """Keyword arguments for the fields of `SpeculationParams`, which describes them."""

    mode: Mode | str | None
    preset: str | None
    draft_length: DraftLength | int
    sub_drafter: bool | None
    exact_in: Sequence[Span | str]
    window: int | None
    threshold: float | None
    tail: TailPolicy | str | None
    carry_after: int | None
    guard_stops: bool | None
    guard_excluded: bool | None
    strict_prefix_tokens: int | None
    entropy: EntropyEstimator | str | None
    max_logprob_gap: float | None
    reproducible_drafts: bool | None


class RequestOptions(SamplingOptions, SpeculationOptions, total=False):
    """Keyword arguments of `generate`, `chat` and their streams, all optional.

    Attributes:
        stop: The response ends before this string, or before the first of several.
        n: Number of choices, decoded in parallel; 1 by default.
        logprobs: Return log-probabilities, also those of this many most likely tokens; 0 to 20.
        prediction: Text that the response is expected to resemble, such as the file to be edited: it makes
            the response faster where it is right.
        grammar: Constraint on the text of the response, such as a JSON Schema.
        prompt_logprobs: Return the tokens of the prompt with their log-probabilities, also those of this many
            most likely tokens; 0 to 20. `max_new_tokens` may then be 0.
        evidence: Return the evidence of every round, as `flyserve calibrate` records it; False by default.
        cache_salt: The servers share cached prefixes and memories only between requests with the same salt.
        priority: Higher values run first when work queues; 0 by default.
        request_id: For logs, the server's too; drawn by default.
    """

    stop: str | Sequence[str]
    n: int | None
    logprobs: int | None
    prediction: str
    grammar: Grammar | None
    prompt_logprobs: int | None
    evidence: bool
    cache_salt: str
    priority: int
    request_id: str


def make_request(
    caller: str,
    prompt: Prompt,
    max_new_tokens: int | None,
    sampling: SamplingParams | None,
    speculation: SpeculationParams | None,
    options: Mapping[str, Any],
) -> GenerateRequest:
    """Return the request of a public function, whose name errors have.

    Raises:
        TypeError: The function has no such keyword argument.
        InvalidRequest: A value is of another kind than its field. The wire and the server check the rest.
    """
    if unknown := [name for name in options if name not in RequestOptions.__annotations__]:
        near = difflib.get_close_matches(unknown[0], RequestOptions.__annotations__, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{caller}() has no keyword argument {unknown[0]!r}{hint}")
    given = {name: value for name, value in options.items() if value is not None}
    sampled = _params(SamplingParams, "sampling", sampling, "temperature=0.7", given)
    speculative = _params(SpeculationParams, "speculation", speculation, 'mode="exact"', given)
    given["request_id"] = given.get("request_id") or uuid.uuid4().hex
    if "stop" in given:
        given["stop"] = _several(given["stop"])
    return GenerateRequest(
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        max_new_tokens=max_new_tokens,
        sampling=sampled,
        speculation=speculative,
        **given,
    )


def conversation(messages: Messages) -> tuple[ChatMessage, ...]:
    """Return the messages of a conversation; raise InvalidRequest for one without role or content."""
    if isinstance(messages, str):
        return (ChatMessage("user", messages),)
    return tuple(_message(index, message) for index, message in enumerate(messages))


def _message(index: int, message: ChatMessage | Mapping[str, str]) -> ChatMessage:
    if isinstance(message, ChatMessage):
        return message
    if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
        raise InvalidRequest.of(f"messages[{index}]", "must have role and content, and nothing else")
    return ChatMessage(**message)


def _params(kind: type[P], field: str, base: P | None, example: str, given: dict[str, Any]) -> P:
    """Take the fields of one kind out of keyword arguments, and change an object of that kind by them."""
    if not isinstance(base, kind | None):
        found = f"is {base!r}, must be {kind.__name__}"
        raise InvalidRequest.of(
            field, f"{found}; a field of it can be given by its own name, as in {example}"
        )
    named = {each.name: given.pop(each.name) for each in fields(kind) if each.name in given}
    for name in named.keys() & {"exact_in", "stop_token_ids"}:
        named[name] = _several(named[name])
    if isinstance(named.get("draft_length"), int):
        named["draft_length"] = DraftLength(named["draft_length"])
    return replace(base or kind(), **named)


def _several(values: Any) -> Any:
    """Return a text as a tuple of itself, and a list as a tuple; the wire rejects what is neither."""
    return (values,) if isinstance(values, str) else tuple(values) if isinstance(values, list) else values
