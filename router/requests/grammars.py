"""Grammars of requests: check them, compile them once, and put them into the form that targets take."""

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from flyserve.core.errors import InvalidRequest, NotReady
from flyserve.core.grammar import ArgumentsSchema, Grammar, GrammarKind
from router.config import LimitsConfig
from router.json_text import MOST_DEPTH, check_depth, parse_json_text
from router.requests.forced_length import forced_length
from services.common.grammars.compilations import Compilations
from services.common.grammars.follower import GrammarFollower
from services.common.grammars.host import GrammarHost, TokenizerSource
from services.common.grammars.hosted import HostedGrammar
from services.common.grammars.library import (
    FaultySchemas,
    GrammarError,
    GrammarLost,
    SchemaFault,
    compile_grammar,
    limit_whitespace,
    load_tokenizer,
)
from services.common.grammars.limits import GrammarLimits
from services.common.grammars.schemas import without_annotations

_ANSWER = "answer"
"""Name of the grammar of an answer that is not the whole message."""
_STACK_BYTES = 64 << 20
"""Stack of the thread that compiles: larger than that in which the grammar was compiled before."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """A grammar without a fault.

    Attributes:
        form: The grammar as targets take it.
        matcher: The library's matcher at its start, if the router may draft the text that it forces; it must
            be copied before it is used.
        vocab_size: Tokens of a mask.
        num_bytes: Memory that compiling it took.
        warnings: Parts of tools' schemas that it leaves out.
    """

    form: str
    matcher: Any
    vocab_size: int
    num_bytes: int
    warnings: tuple[str, ...] = ()
    is_lost: bool = False

    def follower(self) -> GrammarFollower | None:
        """Return a follower at the start of a response, in microseconds; None if the text may be long."""
        return None if self.matcher is None else GrammarFollower(self.matcher.deep_copy(), self.vocab_size)


class Grammars:
    """Prepares the grammars of all requests of a router; equal ones are compiled once.

    A grammar is compiled in a process of its own first, which can be ended. Only one that passed there, and
    that forces a short text, is compiled again in this process, to follow responses on the event loop.
    """

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, limits: LimitsConfig) -> None:
        """Compile for the tokenizer with this `tokenizer.json`."""
        self._host = GrammarHost.join()
        self._source = TokenizerSource(f"router {id(self)}", tokenizer_json, vocab_size)
        self._limits = limits
        self._tokenizer: Any = None
        self._compilations = Compilations[CompiledGrammar]()
        self._pool = _pool_with_large_stack()

    async def start(self) -> None:
        """Load the tokenizer, here and in the processes of grammars; requests report it if it has a fault."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(GrammarError):
            await asyncio.gather(
                loop.run_in_executor(self._pool, self._load), asyncio.to_thread(self._host.load, self._source)
            )

    async def prepare(self, grammar: Grammar, tenant: str = "") -> CompiledGrammar:
        """Return the compiled grammar; tenants take turns if there are many.

        Raises:
            InvalidRequest: Field `grammar` has a fault.
            Overloaded: Too many grammars wait to be compiled.
            NotReady: The process that compiles has ended.
        """
        rules = (grammar.text, grammar.before, grammar.heading, grammar.calls)
        texts = (*rules, *(each.text for each in grammar.schemas))
        length, limit = sum(map(len, texts)), self._limits.grammar_characters
        if length > limit:
            found = f"has {length} characters, at most {limit} (router.limits.grammar_characters)"
            raise InvalidRequest.of("grammar", found)
        key = hashlib.sha256(repr(grammar).encode("utf-8", "surrogatepass")).digest()
        return await self._compilations.result(key, lambda: self._compile(grammar), tenant)

    async def close(self) -> None:
        """End what is compiled, and the processes."""
        self._compilations.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._host.leave)

    def _load(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._source.read(), self._source.vocab_size)
        return self._tokenizer

    def _compile(self, grammar: Grammar, warnings: tuple[str, ...] = ()) -> CompiledGrammar:
        form, matcher, limits = library_form(grammar), None, self._limits
        most = GrammarLimits(limits.grammar_compile_s, "router.limits.grammar_compile_s")
        try:
            hosted = HostedGrammar(self._host, self._source, most)
            hosted.compile(form)
            if 0 < limits.forced_characters >= forced_length(grammar):
                matcher = self._pool.submit(lambda: compile_grammar(self._load(), form)).result()
        except GrammarLost as error:
            raise NotReady(str(error)) from None
        except FaultySchemas as error:
            return self._compile(*loosened(grammar, error.faults))
        except GrammarError as error:
            kind = "" if grammar.is_of_tools else f" as {grammar.kind.value}"
            raise InvalidRequest.of("grammar", f"cannot be used{kind}: {error}") from None
        num_bytes = len(form) + hosted.num_bytes
        return CompiledGrammar(form, matcher, self._source.vocab_size, num_bytes, warnings)


def _pool_with_large_stack() -> ThreadPoolExecutor:
    """Return a pool of one thread with a large stack."""
    pool, usual = ThreadPoolExecutor(1, thread_name_prefix="flyserve-grammar"), threading.stack_size()
    threading.stack_size(_STACK_BYTES)
    try:
        pool.submit(int)
    finally:
        threading.stack_size(usual)
    return pool


def loosened(grammar: Grammar, faults: Mapping[str, SchemaFault]) -> tuple[Grammar, tuple[str, ...]]:
    """Return a grammar without the parts of hints that cannot be applied, and the warnings about them.

    Raises:
        InvalidRequest: The schema of the answer, or that of a strict tool, has a fault.
    """
    if (of_answer := faults.get(_ANSWER)) is not None:
        raise InvalidRequest.of("grammar", f"cannot be used as {grammar.kind.value}: {of_answer.error}")
    schemas, warnings = list[ArgumentsSchema](), list[str]()
    for schema in grammar.schemas:
        if (fault := faults.get(schema.rule)) is not None:
            keywords = ", ".join(fault.keywords)
            found = (
                f"{keywords} cannot be applied"
                if keywords
                else f"its schema cannot be applied: {fault.error}"
            )
            if not schema.is_hint:
                remedy = "leave it out, or set strict to false"
                raise InvalidRequest.of(
                    "tools", f"have the strict tool {schema.tool!r}, but {found}: {remedy}"
                )
            warnings.append(f"tool {schema.tool!r}: {found}; it is left out")
            schema = replace(schema, text=json.dumps(fault.looser), is_hint=False)
        schemas.append(schema)
    return replace(grammar, schemas=tuple(schemas)), tuple(warnings)


def library_form(grammar: Grammar) -> str:
    """Return a grammar in the library's own form, JSON; raise InvalidRequest for a malformed text."""
    form = _form(grammar)
    parts = [{"name": each.rule, **_of_schema(json.loads(each.text))} for each in grammar.schemas]
    if grammar.before or grammar.calls:
        begin = "start: before " if grammar.before else "start: "
        answer = f"{grammar.heading} @{_ANSWER}".lstrip()
        rest = f"(calls | {answer})" if grammar.calls else answer
        whole = {"lark_grammar": f"{begin}{rest}\n{grammar.before}\n{grammar.calls}"}
        parts, form = [{**form, "name": _ANSWER}, *parts], whole
    return json.dumps({"grammars": [form, *parts]}, ensure_ascii=False)


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
            check_depth(schema, "grammar")
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
    return {"json_schema": limit_whitespace(without_annotations(schema))}


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
        return parse_json_text(text)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise InvalidRequest.of("grammar", f"is nested too deep, at most {MOST_DEPTH} levels") from None
        raise InvalidRequest.of("grammar", f"must be {what}, but is not JSON: {error}") from None
