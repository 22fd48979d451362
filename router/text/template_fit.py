"""Fit a conversation to a chat template: instructions, ids and arguments of calls, calls of one message."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import product
from typing import Any

from flyserve.core.errors import InvalidRequest
from router.json_text import parse_json_text

Message = Mapping[str, Any]

_INSTRUCTING = ("system", "developer")
_MOST_LEADING = 3
"""Instructing messages at the start of an example: a template that takes three takes more."""
_SHORT_ID = 9
"""Letters and digits of a call's id in Mistral's templates, which take no other ids."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """A form of earlier tool calls.

    Attributes:
        arguments_as_text: Arguments are JSON as text, not objects.
        has_short_ids: Ids have nine letters and digits.
        has_one_call: A message has at most one call, and its result follows.
    """

    arguments_as_text: bool = False
    has_short_ids: bool = False
    has_one_call: bool = False

    def apply(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return a conversation in this form."""
        split = [*_with_one_call(messages)] if self.has_one_call else messages
        return [self._adapted(each) for each in split]

    def _adapted(self, message: Message) -> Message:
        found = dict(message)
        if calls := message.get("tool_calls"):
            found["tool_calls"] = [self._call(each) for each in calls]
        if self.has_short_ids and "tool_call_id" in message:
            found["tool_call_id"] = _short_id(message["tool_call_id"])
        return found

    def _call(self, call: Message) -> Message:
        function = call["function"]
        arguments = function["arguments"]
        return {
            **call,
            "id": _short_id(call["id"]) if self.has_short_ids else call["id"],
            "function": {
                **function,
                "arguments": arguments if self.arguments_as_text else arguments_of(arguments),
            },
        }


class TemplateFit:
    """Fits conversations to one chat template, which renders examples to show what it takes.

    NOTE: its source does not tell. A template may name a role, and render only the first message of it.
    """

    def __init__(self, render: Callable[[Sequence[Message]], str], source: str) -> None:
        """`render` returns the text of a conversation, or raises InvalidRequest."""
        self._render = render
        self._has_developer = any(f"{quote}developer{quote}" in source for quote in "'\"")
        self._takes = lru_cache(64)(self._shows_instructions)

    def fitted(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return a conversation in a form that the template takes, if there is one.

        Arguments of calls are JSON as text, and stay texts, or become objects.
        """
        roles = [each["role"] for each in messages]
        if "developer" in roles or any(role in _INSTRUCTING for role in roles[1:]):
            start = next((at for at, role in enumerate(roles) if role not in _INSTRUCTING), len(roles))
            late = frozenset(_INSTRUCTING).intersection(roles[start:])
            if not self._takes(tuple(roles[: min(start, _MOST_LEADING)]), late):
                messages = _with_one_system(messages)
        if any("tool_calls" in each for each in messages):
            messages = self._call_form.apply(messages)
        return messages

    def _shows_instructions(self, leading: tuple[str, ...], late: frozenset[str]) -> bool:
        """Return True if the template renders these instructing messages, wherever they are."""
        if "developer" in {*leading, *late} and not self._has_developer:
            return False
        roles = [*leading, "user"]
        for role in sorted(late):
            roles += ["assistant", role, "user"]
        example = [{"role": role, "content": f"word{at}"} for at, role in enumerate(roles)]
        return self._shows(example, (each["content"] for each in example if each["role"] in _INSTRUCTING))

    @cached_property
    def _call_form(self) -> CallForm:
        """The first form in which the template renders calls; the first of all if there is none."""
        forms = (CallForm(as_text, is_short) for as_text, is_short in product((False, True), repeat=2))
        for form in forms:
            if self._shows_calls(form, 1):
                has_one_call = not self._shows_calls(form, 2)
                return CallForm(form.arguments_as_text, form.has_short_ids, has_one_call)
        return CallForm()

    def _shows_calls(self, form: CallForm, number: int) -> bool:
        """Return True if the template renders the arguments of this many calls in a message."""
        ids = [f"call_with_a_long_id_{at}" for at in range(number)]
        calls = [
            {
                "id": each,
                "type": "function",
                "function": {"name": f"tool{at}", "arguments": f'{{"key": "word{at}"}}'},
            }
            for at, each in enumerate(ids)
        ]
        results = [{"role": "tool", "content": "done", "tool_call_id": each} for each in ids]
        asked = {"role": "assistant", "content": "", "tool_calls": calls}
        example: list[Message] = [{"role": "user", "content": "go"}, asked, *results]
        return self._shows(form.apply(example), (f"word{at}" for at in range(number)))

    def _shows(self, example: Sequence[Message], words: Iterable[str]) -> bool:
        """Return True if a rendered conversation has all words, and none as Python writes it in an object."""
        with suppress(InvalidRequest):
            text = self._render(example)
            return all(word in text and f"'{word}'" not in text for word in words)
        return False


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of an earlier call as an object, which is what most chat templates take.

    A call that was cut has the part of its object that there is. Anything else than an object is shown to the
    model as it is, as the value of `arguments`.
    """
    found: Any = text
    for is_cut in (False, True):
        with suppress(ValueError):
            found = parse_json_text(text or "{}", is_cut=is_cut)
            break
    if found is None:
        return {}
    return found if isinstance(found, dict) else {"arguments": found}


def _with_one_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages with all that instruct the model in the first one: many templates take no other."""
    others = [each for each in messages if each["role"] not in _INSTRUCTING]
    texts = [each["content"] for each in messages if each["role"] in _INSTRUCTING]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *others]


def _with_one_call(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages with at most one call each, and the result of each call after it."""
    remaining = deque(messages)
    while remaining:
        message = remaining.popleft()
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            yield message
            continue
        results: defaultdict[str, deque[Message]] = defaultdict(deque)
        while remaining and remaining[0]["role"] == "tool":
            result = remaining.popleft()
            results[result["tool_call_id"]].append(result)
        for call in calls:
            yield {**message, "tool_calls": [call]}
            message = {"role": "assistant", "content": ""}  # content and reasoning are with the first call
            if found := results[call["id"]]:
                yield found.popleft()
        for left in results.values():
            yield from left


def _short_id(given: str) -> str:
    """Return an id of nine letters and digits, by the id that was given."""
    is_short = len(given) == _SHORT_ID and given.isascii() and given.isalnum()
    return given if is_short else sha256(given.encode()).hexdigest()[:_SHORT_ID]
