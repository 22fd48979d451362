"""Jinja as chat templates use it, with results that know which of their characters a template wrote."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from jinja2 import nodes, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import FILTERS
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.text.traced import joined, of_template, traced


class _TracedCode(CodeGenerator):
    """Code of a template whose own text is traced, and that joins texts without losing this."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return _written("".join(group))

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        self.write(_constant(node.value))

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(_written(node.data))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")


def _written(text: str) -> str:
    """Return the code of a text that the template writes."""
    return f"environment.written({text!r})"


def _constant(value: Any) -> str:
    """Return the code of a constant; Jinja makes one of a list or map of constants, too."""
    match value:
        case str():
            return _written(value)
        case dict():
            return f"{{{', '.join(f'{_constant(key)}: {_constant(item)}' for key, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(_constant, value))}]"
        case tuple():
            return f"({''.join(f'{_constant(item)}, ' for item in value)})"
    return repr(value)


@pass_eval_context
def _join(context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
    """Join as Jinja's filter does, which asks the separator to join."""
    return FILTERS["join"](context, value, traced(d), attribute)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The dialect of transformers' chat templates; results are `Traced`."""

    code_generator_class = _TracedCode
    concat = staticmethod(joined)
    written = staticmethod(lru_cache(4096)(of_template))

    def __init__(self) -> None:
        # NOTE: the library has no public name for its dialect: filters, globals, and the tag `generation`.
        from transformers.utils.chat_template_utils import _compile_jinja_template

        dialect = _compile_jinja_template("").environment
        super().__init__(
            trim_blocks=dialect.trim_blocks,
            lstrip_blocks=dialect.lstrip_blocks,
            extensions=[type(extension) for extension in dialect.extensions.values()],
        )
        self.globals.update(dialect.globals)
        self.filters.update(dialect.filters, join=_join)

    def literal_text(self, source: str) -> str:
        """Return all text that a template has: what is outside of its tags, and its string constants."""
        tree = self.parse(source)
        texts = {data.data for data in tree.find_all(nodes.TemplateData)}
        texts |= {const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str)}
        return "\0".join(texts)
