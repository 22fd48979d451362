"""Random grammars that are valid and expensive: chains through every keyword, width, products, repetition."""

import json
import random
from collections.abc import Callable
from typing import Any

from flyserve.core.grammar import Grammar, GrammarKind

Schema = dict[str, Any]

LINKS: dict[str, Callable[[Schema], Schema]] = {
    "$ref": lambda ref: ref,
    "allOf": lambda ref: {"allOf": [ref]},
    "allOf of two": lambda ref: {"allOf": [ref, {"type": "object"}]},
    "anyOf": lambda ref: {"anyOf": [ref, {"type": "null"}]},
    "oneOf": lambda ref: {"oneOf": [ref, {"const": 1}]},
    "items": lambda ref: {"type": "array", "items": ref},
    "prefixItems": lambda ref: {"type": "array", "prefixItems": [ref]},
    "properties": lambda ref: {"type": "object", "properties": {"a": ref}},
    "required": lambda ref: {"type": "object", "properties": {"a": ref}, "required": ["a"]},
    "patternProperties": lambda ref: {"type": "object", "patternProperties": {"^a": ref}},
    "additionalProperties": lambda ref: {"type": "object", "additionalProperties": ref},
    "twice": lambda ref: {"type": "object", "properties": {"a": ref, "b": ref}, "required": ["a", "b"]},
}
RULES = {
    "rule": "{0}: {1}",
    "wrapped rule": '{0}: "a" {1} "b"',
    "alternative rule": '{0}: "a" {1} | "c" {1}',
    "optional rule": '{0}: "x"? {1}',
    "repeated rule": "{0}: {1}+",
}


def schema_chain(link: str, length: int, place: str = "$defs") -> Schema:
    """Return a schema with a chain of references through one keyword."""
    parts = {f"d{n}": LINKS[link]({"$ref": f"#/{place}/d{n + 1}"}) for n in range(length)}
    return {"$ref": f"#/{place}/d0", place: parts | {f"d{length}": {"type": "string"}}}


def lark_chain(rule: str, length: int, letter: str = "r") -> str:
    """Return a grammar with a chain of rules, or of terminals if the letter is a capital."""
    lines = [RULES[rule].format(f"{letter}{n}", f"{letter}{n + 1}") for n in range(length)]
    return "\n".join([f"start: {letter}0", *lines, f'{letter}{length}: "a"'])


def unwinding(width: int) -> str:
    """Return a grammar whose parser needs ever more time for a step: one token ends a tower of rules."""
    rules = "\n".join(f'w{n}: y z{n}\nz{n}: "{n}"?' for n in range(width))
    return f'start: y\ny: "a" w | "!"\nw: {" | ".join(f"w{n}" for n in range(width))}\n{rules}'


def hostile(rng: random.Random) -> tuple[str, Grammar]:
    """Return a random grammar, and the name of its kind."""
    name = rng.choice(sorted(_KINDS))
    return name, _KINDS[name](rng)


def _length(rng: random.Random, most: int) -> int:
    return int(most ** rng.uniform(0.3, 1.0))


def _schema(schema: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema, separators=(",", ":")))


def _lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


def _schema_chain(rng: random.Random) -> Grammar:
    place = rng.choice(["$defs", "definitions"])
    return _schema(schema_chain(rng.choice(sorted(LINKS)), _length(rng, 3500), place))


def _lark_chain(rng: random.Random) -> Grammar:
    return _lark(lark_chain(rng.choice(sorted(RULES)), _length(rng, 10_000), rng.choice("rT")))


def _chain_before(rng: random.Random) -> Grammar:
    before = lark_chain(rng.choice(sorted(RULES)), _length(rng, 8000)).replace("start:", "before:", 1)
    return Grammar(GrammarKind.JSON_OBJECT, before=before)


def _chain_in_lark(rng: random.Random) -> Grammar:
    schema = schema_chain(rng.choice(sorted(LINKS)), _length(rng, 2500))
    return _lark(f"start: %json {json.dumps(schema)}")


def _wide(rng: random.Random) -> Grammar:
    names = [f"{n:x}" for n in range(_length(rng, 12_000))]
    schema: Schema = {"properties": {name: {"type": rng.choice(["integer", "string"])} for name in names}}
    return _schema(schema | ({"required": names} if rng.random() < 0.5 else {}))


def _product(rng: random.Random) -> Grammar:
    ways = [
        {"properties": {f"{i}_{j}": {"type": "string"} for j in range(9)}} for i in range(_length(rng, 40))
    ]
    return _schema({"allOf": [{"anyOf": ways} for _ in range(_length(rng, 6))]})


def _enum(rng: random.Random) -> Grammar:
    return _schema({"enum": [f"{rng.getrandbits(80):x}" for _ in range(_length(rng, 9000))]})


def _choice(rng: random.Random) -> Grammar:
    texts = [f"{rng.getrandbits(40):x}" for _ in range(_length(rng, 17_000))]
    return Grammar(GrammarKind.CHOICE, json.dumps(texts))


def _repeated(rng: random.Random) -> Grammar:
    text = rng.choice(["a", "[a-z]", "(a|ab|b)", ".", "(a?b?)"])
    for _ in range(rng.randint(1, 8)):
        text = f"({text}){{{rng.choice(['0', '1', '3'])},{rng.choice([4, 30, 999])}}}"
    return Grammar(GrammarKind.REGEX, text)


def _repeated_rules(rng: random.Random) -> Grammar:
    text = '"a"?'
    for _ in range(rng.randint(1, 10)):
        text = f"({text}){{0,{rng.choice([4, 10, 100])}}}"
    return _lark(f"start: {text}")


def _unwinding(rng: random.Random) -> Grammar:
    return _lark(unwinding(_length(rng, 600)))


def _ambiguous(rng: random.Random) -> Grammar:
    ways = " | ".join(" ".join(["e"] * n) for n in range(2, 2 + _length(rng, 60)))
    return _lark(f"start: e\ne: {ways} | /[ab ]/")


def _optional(rng: random.Random) -> Grammar:
    return _lark("start: " + " ".join('"x"?' for _ in range(_length(rng, 20_000))) + ' "a"')


_KINDS: dict[str, Callable[[random.Random], Grammar]] = {
    "schema chain": _schema_chain,
    "rule chain": _lark_chain,
    "chain before": _chain_before,
    "chain in lark": _chain_in_lark,
    "wide object": _wide,
    "product": _product,
    "enum": _enum,
    "choice": _choice,
    "repeated regex": _repeated,
    "repeated rules": _repeated_rules,
    "unwinding rules": _unwinding,
    "ambiguous rules": _ambiguous,
    "optional parts": _optional,
}
