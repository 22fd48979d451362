"""Tokens of a message's content: they join to the content, whatever comes between."""

from collections.abc import Iterator, Mapping

from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.markers import THINK
from router.text.stop_strings import StopStrings
from router.tools.families import PARSERS, ToolFamily
from router.tools.message import Message, MessageFormat, markers_of
from router.tools.parts import Parts

DEEPSEEK = PARSERS[ToolFamily.DEEPSEEK].markers
PIECES = (
    *("a", "b ", "  ", "\n", "STOP", "ST", "{", ";", "[", "]", "f{}", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', '{"name": "x"}', "[TOOL_CALLS]"),
    *('a <tool_call>{"name": "f", "arguments": {}}\n</tool_call>', '[TOOL_CALLS][{"name": "f"}, ]', "`"),
    *("<tool_call>\n<function=f>", "<parameter=a>", "</parameter>", "</function>", "<arg_key>", "</arg_key>"),
    *("<arg_value>", "</arg_value>", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>"),
    *(*DEEPSEEK, f"{DEEPSEEK[2]}f{DEEPSEEK[4]}{{}}"),
)
FORMS = st.builds(
    MessageFormat,
    st.sampled_from([None, *PARSERS.values()]),
    st.just({"f": {}}),
    reasoning=st.sampled_from([None, THINK]),
    is_thinking=st.booleans(),
    parallel=st.booleans(),
    markers=st.sampled_from([{}, {"<tool_call>": 1, "</think>": 2}]),
    tracks_tokens=st.just(True),
)


def tokens_of(piece: str, known: Mapping[str, int | None]) -> Iterator[tuple[int, str]]:
    """Yield the tokens of a piece: a marker that has one, or one for each character."""
    if (token := known.get(piece)) is not None:
        yield token, piece
    else:
        yield from ((9, char) for char in piece)


@given(FORMS, st.lists(st.sampled_from(PIECES), max_size=10), st.data())
def test_tokens_of_the_content_join_to_it(
    form: MessageFormat, pieces: list[str], data: st.DataObject
) -> None:
    known = {marker: token for marker, token in (form.markers or {}).items() if marker in markers_of(form)}
    stops = StopStrings(data.draw(st.sampled_from([(), ("STOP",)])))
    message, found, texts = Message(form, stops), list[Parts](), list[str]()
    for token, text in (pair for piece in pieces for pair in tokens_of(piece, known)):
        texts.append(text)
        if message.push(token, "" if text in known else text):
            break
        if data.draw(st.booleans()):
            found.append(message.take())
    message.finish("")
    found.append(message.take())
    flags = [flag for parts in found for flag in parts.are_content]
    assert len(flags) == len(texts)
    own = [text for text, flag in zip(texts, flags, strict=True) if flag]
    assert "".join(own) == "".join(parts.content for parts in found)


def test_a_token_that_is_content_in_part_counts_and_one_without_text_belongs_to_the_next() -> None:
    message = Message(MessageFormat(reasoning=THINK, markers={}, tracks_tokens=True), StopStrings())
    for text in ("<think>x</think>\n\n", "Hi", "", "", "\N{WOMAN}", "", ""):
        message.push(9, text)
    message.finish("\ufffd")
    parts = message.take()
    assert (parts.content, parts.reasoning) == ("Hi\N{WOMAN}\ufffd", "x")
    assert parts.are_content == (False, True, True, True, True, True, True)
    ended = Message(MessageFormat(tracks_tokens=True), StopStrings())
    ended.push(9, "a")
    ended.push(0, "")
    ended.finish("")
    assert ended.take().are_content == (True, False)
