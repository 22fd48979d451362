"""Traced text is the text that it would be without marks, and each character keeps its mark."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.text.jinja import TemplateEnvironment
from router.text.traced import CLIENT, TEMPLATE, Traced, joined, of_template

OURS, THEIRS = "ABC", "abc"
"""Letters of the template and of clients; white space may be either's."""
PARTS = st.lists(st.tuples(st.booleans(), st.text(" \n", max_size=2), st.text("ABC", max_size=3)), max_size=6)
SEPARATORS = st.sampled_from(["a", "A", "bb", "AA", " ", "\n", "ab", "Ca"])
OPERATIONS: list[Callable[[Any, str], Any]] = [
    lambda text, sep: text.strip(),
    lambda text, sep: text.lstrip(sep),
    lambda text, sep: text.rstrip(sep),
    lambda text, sep: text.split(),
    lambda text, sep: text.split(sep),
    lambda text, sep: text.split(None, 1),
    lambda text, sep: text.split(sep, 1),
    lambda text, sep: text.rsplit(sep, 1),
    lambda text, sep: text.rsplit(None, 1),
    lambda text, sep: text.splitlines(),
    lambda text, sep: text.splitlines(True),
    lambda text, sep: text.partition(sep),
    lambda text, sep: text.rpartition(sep),
    lambda text, sep: text.replace(sep, "c"),
    lambda text, sep: text.replace(sep, "bc", 1),
    lambda text, sep: text.removeprefix(sep),
    lambda text, sep: text.removesuffix(sep),
    lambda text, sep: text[1:-1],
    lambda text, sep: text[::-1],
    lambda text, sep: text[-1:],
    lambda text, sep: list(text),
    lambda text, sep: list(reversed(text)),
    lambda text, sep: text * 2,
    lambda text, sep: 2 * text,
    lambda text, sep: text + "a",
    lambda text, sep: "a" + text,
    lambda text, sep: text.join([text, "a", text]),
    lambda text, sep: text.join([]),
    lambda text, sep: "c" + text + text + "b",
]


@pytest.mark.parametrize("operation", OPERATIONS)
@given(parts=PARTS, separator=SEPARATORS)
def test_an_operation_gives_the_same_text_and_each_character_keeps_its_mark(
    operation: Callable[[Any, str], Any], parts: list[tuple[bool, str, str]], separator: str
) -> None:
    texts = [
        joined((of_template(space + word) if is_ours else (space + word.lower()),))
        for is_ours, space, word in parts
    ]
    text = joined(texts)
    found, plain = operation(text, separator), operation(str.__str__(text) + "", separator)
    assert found == plain
    for piece in [found] if isinstance(found, str) else found:
        assert len(piece.marks) == len(piece)
        for char, mark in zip(piece, piece.marks, strict=True):
            assert char not in OURS + THEIRS or mark == (TEMPLATE if char in OURS else CLIENT)


def test_a_change_of_case_keeps_marks_only_while_no_character_moves() -> None:
    text = joined((of_template("ab"), "cd"))
    assert text.upper().marks == text.title().marks == text.lower().marks == text.capitalize().marks == "ttcc"
    assert (longer := joined((of_template("a"), "ß")).upper()) == "ASS" and longer.marks == "ccc"
    assert Traced("ab").marks == "cc"


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        ("A{{ c }}B", "tccct"),
        ("{% set x = 'A' + c ~ 'B' %}{{ x }}", "tccct"),
        ("{% set x %}A{{ c }}{% endset %}{{ x | trim }}", "tccc"),
        ("{% macro m(x) %}A{{ x }}{{ caller() }}{% endmacro %}{% call m(c) %}B{% endcall %}", "tccct"),
        ("{{ ['A', c] | join }}{{ ['A', c] | join('B') }}{{ 'B'.join(['A', c]) }}", "tccc" + "ttccc" * 2),
        (
            "{% for x in ['A', c] %}{{ x }}{% endfor %}{{ {'k': 'A'}[d] }}{{ {'a': c}.keys() | first }}",
            "tccctt",
        ),
        ("{% generation %}A{{ c }}{% endgeneration %}", "tccc"),
        ("{{ ('A' ~ c) | replace('b', 'B') }}{{ ('A' ~ c) | upper }}", "tctctccc"),
        ("{{ {'A': c} | tojson }}{{ c | tojson }}", "c" * (12 + 5)),
        ("{% filter trim %} A{{ c }} {% endfilter %}{{ 'A' if c == 'abc' else c }}", "tccct"),
        ("{% set n = namespace(t='A') %}{% set n.t = n.t + c %}{{ n.t }}{{ c[0] }}{{ 'AB'[1] }}", "tcccct"),
        (
            "{{ {'k': 'A'}[d] }}{{ {'A': ['B']}.get('A')[0] }}{{ ('A', c)[0] }}{{ (['B'] + [c]) | join }}",
            "ttttccc",
        ),
        (
            "{% set n = namespace(l=[]) %}{% set n.l = n.l + ['A', ('B',)] %}{{ n.l[0] }}{{ n.l[1][0] }}",
            "tt",
        ),
        ("{{ 'A%s' % c }}{{ 'A{}'.format(c) }}{{ c.replace('a', 'A') }}", "c" * 11),
    ],
)
def test_a_template_marks_what_it_writes(template: str, marks: str) -> None:
    variables = {"c": "abc", "d": "k"}
    found = TemplateEnvironment().from_string(template).render(variables)
    assert isinstance(found, Traced) and found.marks == marks
    if "generation" not in template:
        assert found == ImmutableSandboxedEnvironment().from_string(template).render(variables)
