"""Incremental text: whole characters only, and the pieces joined are the whole text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from router.text.output import Detokenizer, ResponseText
from router.text.stop_strings import StopStrings

PIECES = ["Ġthe", "ing", "ðŁ", "ĺĢ", "Ġð", "\u0142\u013a", "ä½"]
"""Besides the single bytes: words, and tokens that cut characters in halves, or join two halves."""


def make_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: number for number, piece in enumerate([*alphabet, *PIECES])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=alphabet[0]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = make_tokenizer()
ANY_IDS = st.lists(st.integers(0, 255 + len(PIECES)), max_size=40)


def byte_alphabet() -> dict[int, str]:
    """Return the character for each byte (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(rest)}


BYTE_IDS = {byte: TOKENIZER.token_to_id(character) for byte, character in byte_alphabet().items()}


def encode(text: str) -> list[int]:
    return [BYTE_IDS[byte] for byte in text.encode()]


def split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:end] for start, end in itertools.pairwise(edges)]


CUTS = st.lists(st.integers(0, 200), max_size=30)


@given(st.text(max_size=30))
def test_pieces_of_text_are_whole_characters_and_make_the_text(text: str) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.push(token) for token in encode(text)] + [detokenizer.flush()]
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(ANY_IDS, ANY_IDS)
def test_any_tokens_after_any_context_give_the_text_of_all(context: list[int], ids: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER, context)
    pieces = [detokenizer.push(token) for token in ids] + [detokenizer.flush()]
    assert "".join(pieces) == TOKENIZER.decode(context + ids)[len(TOKENIZER.decode(context)) :]


def test_text_before_an_unfinished_character_is_not_held_back() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert "".join(map(detokenizer.push, encode("hello 😀")[:-2])) == "hello "


def test_bytes_that_never_make_a_character_are_returned_after_a_bounded_number_of_tokens() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.push(BYTE_IDS[0xFF]) for _ in range(2000)]
    assert "".join(pieces) + detokenizer.flush() == "\ufffd" * 2000
    assert max(map(len, pieces)) < 70


STOPS = st.lists(st.text("ab😀", min_size=1, max_size=4), min_size=1, max_size=3)


@given(st.text("ab😀", max_size=24), STOPS, CUTS)
def test_a_stop_string_ends_text_and_tokens_however_they_come(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    ids = encode(text)
    response, kept, given_out = ResponseText(TOKENIZER, (), stops), 0, ""
    for part in split(ids, cuts):
        found = response.find_stop(part)
        given_out += response.take()
        kept += len(part) if found is None else found
        if found is not None:
            break
    given_out += response.flush()
    assert (given_out, kept) == expected_ending(text, stops)


def expected_ending(text: str, stops: list[str]) -> tuple[str, int]:
    """Return the text before the earliest stop string and the tokens up to its end, by brute force."""
    for end in range(1, len(text) + 1):
        if starts := [text[:end].find(stop) for stop in stops if stop in text[:end]]:
            return text[: min(starts)], len(text[:end].encode())
    return text, len(text.encode())


@given(st.text("ab", max_size=24), STOPS)
def test_nothing_that_may_begin_a_stop_string_is_given_out(text: str, stops: list[str]) -> None:
    response, given_out = ResponseText(TOKENIZER, (), stops), ""
    for token in encode(text):
        if response.find_stop([token]) is not None:
            break
        given_out += response.take()
        assert not any(stop in given_out for stop in stops)
    assert expected_ending(text, stops)[0].startswith(given_out)


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1000])
def test_a_resumed_response_continues_as_if_it_had_not_been_interrupted(length: int) -> None:
    ids = encode("ab " * 400)
    whole, resumed = (ResponseText(TOKENIZER, (), ["b a!", "end"]) for _ in range(2))
    assert whole.find_stop(ids[:length]) is None and resumed.resume(ids[:length])
    whole.take()
    whole.take_token_texts()
    rest = [*ids[length:], *encode("the end")]
    assert whole.find_stop(rest) == resumed.find_stop(rest) == len(rest)
    assert whole.flush() == resumed.flush()
    assert whole.take_token_texts() == resumed.take_token_texts()


@pytest.mark.parametrize("position", [0, 250, 256, 600])
def test_a_stop_string_in_a_resumed_response_is_found(position: int) -> None:
    response = ResponseText(TOKENIZER, (), ["stop!"])
    assert not response.resume(encode("x" * position + "stop!" + "x" * 300))


class MeasuredStops(StopStrings):
    """A search that records the length of the text before each token."""

    def __init__(self) -> None:
        super().__init__(["never"])
        self.lengths: list[int] = []

    def push(self, text: str) -> bool:
        self.lengths.append(len(self._held))
        return super().push(text)


def test_the_text_of_a_resumed_response_does_not_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding to all text before it, token by token, would take quadratic time."""
    response, stops = ResponseText(TOKENIZER, (), []), MeasuredStops()
    monkeypatch.setattr(response, "_stops", stops)
    assert response.resume(encode("x" * 5000))
    assert len(stops.lengths) == 5000 and max(stops.lengths) <= 256


def test_a_token_that_ends_the_response_has_no_text() -> None:
    (text, ending) = (TOKENIZER.token_to_id(piece) for piece in ("a", "b"))
    response = ResponseText(TOKENIZER, (), ["b"], ending_ids=(ending,))
    assert response.find_stop([text, ending]) is None
    assert response.take_token_texts() == ("a", "") and response.take() + response.flush() == "a"
