"""Calls whose arguments are text between tags, as Qwen3-Coder and Qwen 3.5, and as GLM write them."""

from abc import abstractmethod
from collections.abc import Mapping
from itertools import count
from typing import Any, ClassVar

from flyserve.core.markers import HERMES_CALL
from router.tools.argument_types import properties_of, types_of, without_reference
from router.tools.hermes import Hermes
from router.tools.json_call import Reader
from router.tools.lark import ArgumentsRule, Write, is_token, literal, up_to, without
from router.tools.tagged_call import TaggedReader, Tags

_OPEN, _CLOSE = HERMES_CALL
_FUNCTION = "<function="
_KEY, _END_KEY, _VALUE, _END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


class Tagged(Hermes):
    """Parser of such a format; each call is between the markers of Hermes' format.

    A grammar holds the names of tools and arguments, values of an enum, and those that are no text by their
    schema. Other text is free, and so are the parts of a value whose schema has references.
    """

    tags: ClassVar[Tags]
    line: ClassVar[str]
    """Line break between the parts of a call, in the notation of a grammar."""

    @classmethod
    def arguments_rule(cls, rule: str, schema: Any, write: Write) -> ArgumentsRule:
        properties, required, are_all = properties_of(schema)
        if not properties:
            return ArgumentsRule("" if are_all else "any_argument*")
        steps = count()
        parts, lines, schemas = list[str](), list[str](), dict[str, Any]()
        for index, (key, value) in enumerate(properties.items()):
            own, types = f"{rule}_{index}", types_of(value, schema, steps)
            parts.append(own if key in required else f"{own}?")
            written = ""
            if "string" not in types:
                schemas[own] = {"type": sorted(types)} if _has_references(value) else value
                written = f"@{own}"
            elif choices := _choices(without_reference(value, schema, steps)):
                written = f"({' | '.join(map(literal, choices))})"
            end = f"{cls.line if cls.tags.has_lines else ''} {write(cls.tags.value[1])}"
            text = f"{written} {end}" if written else "text_value"
            lines.append(f"{own}: {cls._argument(literal(key), text, write)}")
        return ArgumentsRule(rule, "\n".join((f"{rule}: {' '.join(parts)}", *lines)), schemas)

    @classmethod
    def calls_rule(cls, tools: Mapping[str, str], write: Write, parallel: bool) -> str:
        calls = "\n  | ".join(cls._call(name, arguments, write) for name, arguments in tools.items())
        end = cls.tags.value[1]
        text = f"text_value: TEXT {write(end)}\nTEXT: {without(end)}"
        if not is_token(write(end)):
            text = f"text_value[lazy]: {up_to(end)}"
        return "\n".join(
            (
                "calls: item" + (f" ({cls.line} item)*" if parallel else ""),
                f"item: {write(_OPEN)} call {write(_CLOSE)}",
                f"call: {calls}",
                text,
                f"any_argument: {cls._argument('KEY', 'text_value', write)}",
                r"KEY: /[^<>\n]+/",
            )
        )

    @classmethod
    @abstractmethod
    def _call(cls, name: str, arguments: str, write: Write) -> str:
        """Return the grammar of a call of one tool, without the markers around it."""

    @classmethod
    def _argument(cls, key: str, value: str, write: Write) -> str:
        """Return the grammar of an argument, of those of its name and of its value with the tag after it."""
        before_key, after_key = map(write, cls.tags.key)
        before_value = write(cls.tags.value[0]) if cls.tags.value[0] else ""
        return f"{before_key} {key} {after_key} {cls.line} {before_value} {value} {cls.line}"

    def _new_reader(self) -> Reader:
        return TaggedReader(self._sink, self.tags)


class Qwen3Coder(Tagged):
    """Parser of `<function=NAME>` with `<parameter=KEY>`, each value on lines of its own.

    Models often leave out the marker before it, so a call may begin with its first tag, too.
    """

    markers = (_OPEN, _CLOSE, _FUNCTION)
    tags = Tags(
        name=(_FUNCTION, (">",)),
        key=("<parameter=", ">"),
        value=("", "</parameter>"),
        has_lines=True,
        end=("</function>", _CLOSE),
    )
    line = r'"\n"'

    @classmethod
    def _call(cls, name: str, arguments: str, write: Write) -> str:
        return rf'"\n" {write(_FUNCTION)} "{name}>\n" {arguments} "</function>\n"'

    def _on_marker(self, marker: str) -> None:
        if marker != _FUNCTION:
            super()._on_marker(marker)
            return
        super()._on_marker(_OPEN)
        self._raw.take()
        self.push(marker)


class Glm(Tagged):
    """Parser of GLM 4.5 and later: the name of the tool, then pairs of `<arg_key>` and `<arg_value>`."""

    markers = (_OPEN, _CLOSE, _KEY, _END_KEY, _VALUE, _END_VALUE)
    tags = Tags(
        name=("", ("\n", _KEY, _CLOSE)),
        key=(_KEY, _END_KEY),
        value=(_VALUE, _END_VALUE),
        has_lines=False,
        end=(_CLOSE,),
    )
    line = r'"\n"?'

    @classmethod
    def _call(cls, name: str, arguments: str, write: Write) -> str:
        return f"{literal(name)} {cls.line} {arguments}"


def _choices(schema: Any) -> list[str]:
    """Return the texts that a value must be one of; none if other values are allowed."""
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    return values if isinstance(values, list) and all(isinstance(each, str) for each in values) else []


def _has_references(schema: Any) -> bool:
    """Return True if a schema refers to another part of the schema of its tool."""
    level = [schema]
    while level:
        if any(isinstance(each, Mapping) and isinstance(each.get("$ref"), str) for each in level):
            return True
        level = [
            item
            for each in level
            if isinstance(each, Mapping | list)
            for item in (each.values() if isinstance(each, Mapping) else each)
        ]
    return False
