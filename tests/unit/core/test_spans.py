"""Parts of a response that are decoded exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.spans import MARKERS, Span, SpanState, StrictSpans, advance

PAIRS = [pair for pairs in MARKERS.values() for pair in pairs]
FRAGMENTS = (
    "a",
    "`",
    "``",
    "```",
    "<th",
    "ink>",
    "<think>",
    "</think>",
    "</",
    "<tool_call>",
    "\n",
    "[TOOL_CALLS]",
)


def strict(spans: set[Span], text: str, drafts: str, choices: str | None = None, prompt: str = "") -> str:
    """Return a "!" for each draft character that is decoded exactly; every character is a token."""
    found = StrictSpans(spans, lambda ids: [chr(token) for token in ids], len(prompt))
    found.read([ord(each) for each in prompt])
    ids = [ord(each) for each in prompt + text]
    flags = found.strict(ids, len(ids), list(map(ord, drafts)), list(map(ord, choices or drafts)))
    return "".join("!" if flag else "." for flag in flags)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
def test_a_place_does_not_depend_on_how_the_text_is_cut(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cut = data.draw(st.integers(0, len(text)))
    whole = advance(SpanState(), text, PAIRS)
    assert advance(advance(SpanState(), text[:cut], PAIRS), text[cut:], PAIRS).closing == whole.closing
    by_character = SpanState()
    for each in text:
        by_character = advance(by_character, each, PAIRS)
    assert by_character.closing == whole.closing


@pytest.mark.parametrize(
    ("span", "text", "drafts", "expected"),
    [
        (Span.CODE, "see ", "``` x``` y", "...!!!!!.."),
        (Span.CODE, "```py\nx", " = y", "!!!!"),
        (Span.CODE, "```x```", " y", ".."),
        (Span.REASONING, "", "<think>a</think>b", "......." + "!" * 9 + "."),
        (Span.TOOLS, "[TOOL_CALLS]", "[1]", "!!!"),
        (Span.TOOLS, "<tool_call>{}</tool_call>", "ok", ".."),
        (Span.DIGITS, "", "a1b", ".!."),
    ],
)
def test_the_positions_of_a_part_are_strict(span: Span, text: str, drafts: str, expected: str) -> None:
    assert strict({span}, text, drafts) == expected


def test_a_digit_that_the_target_would_write_counts() -> None:
    assert strict({Span.DIGITS}, "", "abc", "a7c") == ".!."


def test_a_template_may_open_a_part_at_the_end_of_the_prompt() -> None:
    assert strict({Span.REASONING}, "", "a</think>b", prompt="Hi<think>") == "!" * 9 + "."


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), st.data())
def test_a_resumed_response_has_the_same_strict_positions(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    found = StrictSpans({Span.CODE, Span.TOOLS}, lambda ids: [chr(token) for token in ids], length=0)
    found.resume([ord(each) for each in text[:cut]])
    flags = found.strict([ord(each) for each in text], len(text), [ord("x")], [ord("x")])
    assert "".join("!" if flag else "." for flag in flags) == strict({Span.CODE, Span.TOOLS}, text, "x")


def test_without_spans_nothing_is_strict_and_no_text_is_made() -> None:
    found = StrictSpans((), lambda ids: pytest.fail("read"), 0)
    assert found.strict([1, 2], 2, [3, 4], [3, 4, 5]) == (False, False)


def test_provisional_tokens_count_only_until_they_are_rolled_back() -> None:
    found = StrictSpans({Span.CODE}, lambda ids: [chr(token) for token in ids], 0)
    ids = [ord(each) for each in "a```"]
    assert found.strict(ids, 1, [ord("x")], [ord("x")]) == (True,)
    assert found.strict(ids[:1], 1, [ord("x")], [ord("x")]) == (False,)
