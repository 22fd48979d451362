"""The cost of a message grows with its length, whatever a model writes that a parser has to withhold."""

import pytest

from flyserve.core.markers import THINK
from router.tools.families import ToolFamily
from router.tools.message import MessageFormat
from tests.support.cpu_growth import assert_linear
from tests.support.written_messages import form_of, parsed

_WIDE, _WHITE = "\N{PANDA FACE}", "\N{IDEOGRAPHIC SPACE}"
"""Characters that make a copy of all text take longer: it then has four bytes, or two, for each."""
_CALLS = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
WITHHELD: list[tuple[ToolFamily, str, str]] = [
    (ToolFamily.HERMES, f'<tool_call>{{"arguments": {{"{_WIDE}": "', "x" * 4),
    (ToolFamily.LLAMA3, f'{{"{_WIDE}": "', "x" * 4),
    (ToolFamily.LLAMA3, "", _WHITE * 64),
    (ToolFamily.MISTRAL, "[TOOL_CALLS][", _WHITE * 6),
    (ToolFamily.DEEPSEEK, _CALLS, _WHITE * 6),
    (ToolFamily.GLM, "<tool_call>", _WHITE * 6),
    (ToolFamily.GLM, f"<tool_call>f<arg_key>n</arg_key><arg_value>{_WIDE}", "x" * 4),
]
"""Format, the beginning of a message, and the text that follows without end."""


@pytest.mark.parametrize(("family", "beginning", "more"), WITHHELD, ids=range(len(WITHHELD)))
def test_text_that_may_become_a_call_costs_its_length(family: ToolFamily, beginning: str, more: str) -> None:
    form = form_of(family)

    def write(num_tokens: int) -> None:
        parsed(form, [(1, beginning), *[(1, more)] * num_tokens], range(0, num_tokens, 100))

    assert_linear(write, 12_000)


@pytest.mark.parametrize("beginning", ["", "a", "<think>a"])
@pytest.mark.parametrize("tracks_tokens", [False, True])
def test_withheld_white_space_costs_its_length(beginning: str, tracks_tokens: bool) -> None:
    form = MessageFormat(reasoning=THINK, tracks_tokens=tracks_tokens)

    def write(num_tokens: int) -> None:
        parsed(form, [(1, beginning), *[(1, _WHITE * 64)] * num_tokens, (1, "b")], range(num_tokens))

    assert_linear(write, 6_000)
