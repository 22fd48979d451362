"""Grammars of requests: check them, compile them once, and put them into the form that targets take."""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fly.errors import InvalidRequest
from fly.grammar import Grammar, GrammarKind
from router.requests.forced_length import forced_length
from services.common.grammars.follower import GrammarFollower
from services.common.grammars.library import GrammarError, compile_grammar, limit_whitespace, load_tokenizer

_MOST_DEPTH = 64
"""Deepest nesting of a JSON Schema."""
_MOST_KEPT = 32
"""Grammars whose result is kept, good or bad."""
_THREADS = 2


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """A grammar without a fault.

    Attributes:
        form: The grammar as targets take it.
        matcher: The library's matcher at its start; it must be copied before it is used.
        vocab_size: Tokens of a mask.
        forced_length: Most characters of a text that it forces.
    """

    form: str
    matcher: Any
    vocab_size: int
    forced_length: float

    def follower(self) -> GrammarFollower:
        """Return a follower at the start of a response; takes microseconds."""
        return GrammarFollower(self.matcher.deep_copy(), self.vocab_size)


class Grammars:
    """Prepares the grammars of all requests of a router; equal ones are compiled once.

    They are compiled in threads of their own, so that many slow ones delay only each other.
    """

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, most_characters: int) -> None:
        """Compile for the tokenizer with this `tokenizer.json`, which is read for the first grammar."""
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._most_characters = most_characters
        self._tokenizer: Any = None
        self._results: OrderedDict[bytes, asyncio.Task[CompiledGrammar]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    async def prepare(self, grammar: Grammar) -> CompiledGrammar:
        """Return the compiled grammar; raise InvalidRequest on field `grammar` if it has a fault."""
        length, limit = len(grammar.text) + len(grammar.before), self._most_characters
        if length > limit:
            found = f"has {length} characters, at most {limit} (router.limits.grammar_characters)"
            raise InvalidRequest.of("grammar", found)
        key = hashlib.sha256(
            f"{grammar.kind}:{bool(grammar.schemas)}:{grammar.before}\0{grammar.text}".encode(
                "utf-8", "surrogatepass"
            )
        ).digest()
        if key not in self._results:
            self._results[key] = asyncio.create_task(self._compiled(grammar))
        self._results.move_to_end(key)
        if len(self._results) > _MOST_KEPT:
            self._results.popitem(last=False)
        # NOTE: others may wait for the same grammar, so the one who asked first must not cancel it.
        return await asyncio.shield(self._results[key])

    def close(self) -> None:
        """End the threads once they have finished what they compile."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _compiled(self, grammar: Grammar) -> CompiledGrammar:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="flyserve-grammar")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._compile, grammar)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        form = library_form(grammar)
        try:
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(self._tokenizer_json(), self._vocab_size)
            matcher = compile_grammar(self._tokenizer, form)
        except GrammarError as error:
            raise InvalidRequest.of("grammar", f"cannot be used as {grammar.kind.value}: {error}") from None
        return CompiledGrammar(form, matcher, self._vocab_size, forced_length(grammar))


def library_form(grammar: Grammar) -> str:
    """Return a grammar in the library's own form, JSON; raise InvalidRequest for a malformed text."""
    form = _form(grammar)
    if not grammar.before:
        return json.dumps({"grammars": [form]}, ensure_ascii=False)
    whole = {"lark_grammar": f"start: before @answer\n{grammar.before}"}
    return json.dumps({"grammars": [whole, {**form, "name": "answer"}]}, ensure_ascii=False)


def _form(grammar: Grammar) -> dict[str, Any]:
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            if grammar.text:
                raise InvalidRequest.of("grammar", "has a text, but json_object takes none")
            return _of_schema({"type": "object"})
        case GrammarKind.JSON_SCHEMA:
            schema = _parsed(grammar.text, "a JSON Schema")
            if not isinstance(schema, dict | bool):
                raise InvalidRequest.of("grammar", "must be a JSON Schema: an object, true or false")
            _check_depth(schema)
            return _of_schema(schema)
        case GrammarKind.REGEX:
            return _of_regex(grammar.text or _missing("a regular expression"))
        case GrammarKind.CHOICE:
            return _of_choices(_parsed(grammar.text, "a JSON list of texts"))
        case GrammarKind.LARK:
            if "::=" in grammar.text:
                raise InvalidRequest.of("grammar", "has ::=, as in EBNF, must be in Lark notation")
            return {"lark_grammar": grammar.text or _missing("a grammar in Lark notation")}


def _missing(what: str) -> Any:
    raise InvalidRequest.of("grammar", f"is empty, must be {what}")


def _of_regex(regex: str) -> dict[str, Any]:
    from llguidance import LLMatcher

    form: dict[str, Any] = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0]
    return form


def _of_schema(schema: dict[str, Any] | bool) -> dict[str, Any]:
    if isinstance(schema, dict) and not isinstance(schema.get("x-guidance", {}), dict):
        raise InvalidRequest.of("grammar", "has x-guidance, which must be an object")
    return {"json_schema": limit_whitespace(schema)}


def _of_choices(choices: Any) -> dict[str, Any]:
    if not isinstance(choices, list) or not choices:
        raise InvalidRequest.of("grammar", "must be a JSON list of at least one text")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise InvalidRequest.of("grammar", f"has choice {index}, which must be a text that is not empty")
    listed = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return {"lark_grammar": f"start: {listed}"}


def _parsed(text: str, what: str) -> Any:
    if not text:
        _missing(what)
    try:
        return json.loads(text, parse_constant=_not_json)
    except RecursionError:
        raise InvalidRequest.of("grammar", f"is nested too deep, at most {_MOST_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidRequest.of("grammar", f"must be {what}, but is not JSON: {error}") from None


def _not_json(name: str) -> Any:
    raise ValueError(f"it has {name}")


def _check_depth(value: Any) -> None:
    """Raise InvalidRequest if a value is nested too deep; without recursion."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        if depth == _MOST_DEPTH:
            raise InvalidRequest.of("grammar", f"is nested too deep, at most {_MOST_DEPTH} levels")
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        depth += 1
