"""A follower after any walk of keeps and appends equals a fresh matcher."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.grammars.follower import is_allowed
from services.common.grammars.library import GrammarError
from tests.support.grammars import END, allowed, encoded, follower, tokenizer


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), st.integers(0, 2**31)), max_size=8))
def test_any_walk_of_keeps_and_appends_equals_a_fresh_matcher(walk: list[tuple[float, int, int]]) -> None:
    walking, response = follower(), list[int]()
    for kept, num_added, draw in walk:
        del response[int(kept * len(response)) :]
        for index in range(num_added):
            assert walking.move(response)
            choices = [token for token in allowed(walking.mask([END])) if token != END]
            if choices:
                response.append(choices[(draw + index) % len(choices)])
        fresh = follower()
        assert walking.move(response) and fresh.move(response)
        assert np.array_equal(walking.mask([END]), fresh.mask([END]))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 639), max_size=6), st.integers(0, 7))
def test_masks_along_drafts_end_at_the_first_excluded_one(noise: list[int], right: int) -> None:
    response = encoded('{"a"')
    drafts = encoded(": 12}")[:right] + noise
    walking = follower()
    masks = list(walking.masks(response, drafts, [END]))
    for index, mask in enumerate(masks):
        fresh = follower()
        assert fresh.move([*response, *drafts[:index]])
        assert np.array_equal(mask, fresh.mask([END]))
        if index < len(masks) - 1:
            assert is_allowed(mask, drafts[index])
    if len(masks) <= len(drafts):
        last = drafts[len(masks) - 1]
        assert last == END or not is_allowed(masks[-1], last)


def test_a_stop_token_is_allowed_where_its_text_may_come_next_too() -> None:
    comma, digit = encoded("1,")[1], encoded("1")[0]
    regex = json.dumps({"grammars": [{"lark_grammar": "start: /[0-9]{1,2}(,[0-9]){2}/"}]})
    for response, is_allowed_there in (
        ("", False),
        ("1", True),
        ("12", True),
        ("1,", False),
        ("1,2,3", True),
    ):
        walking = follower(regex)
        assert walking.move(encoded(response))
        found = allowed(walking.mask([END, comma]))
        assert found and (comma in found) == is_allowed_there
        assert (END in found) == (response == "1,2,3"), "an ending without text needs a whole response"
        assert (digit in found) == (response in ("", "1", "1,"))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 639), max_size=6), st.integers(0, 7), st.integers(0, 6))
def test_the_drafts_that_are_allowed_are_those_of_the_masks(noise: list[int], right: int, start: int) -> None:
    whole = encoded('{"a": 12}')
    response, drafts = whole[:start], whole[start:][:right] + noise
    walking = follower()
    number = walking.num_allowed(response, drafts, [END])
    assert walking.num_allowed(response, drafts, [END]) == number, "drafts are rolled back"
    for index, (mask, draft) in enumerate(
        zip(follower().masks(response, drafts, [END]), drafts, strict=False)
    ):
        if draft == END:
            assert number == len(drafts)
            return
        assert is_allowed(mask, draft) == (index < number)


def test_ending_tokens_are_allowed_exactly_where_the_grammar_accepts() -> None:
    added = 5  # a stop token of the client, which the grammar does not know as one
    open_end, whole = follower(), follower()
    assert open_end.move(encoded('{"a": 1')) and whole.move(encoded('{"a": 1}'))
    assert not {END, added} & set(allowed(open_end.mask([END, added])))
    assert allowed(whole.mask([END, added])) == [END, added]
    assert not allowed(whole.mask([]))


def test_nothing_is_masked_after_the_end_of_a_response() -> None:
    assert list(follower().masks([*encoded('{"a": 1}'), END, 5], [7], [END])) == []


def test_a_response_outside_the_grammar_is_reported() -> None:
    walking = follower()
    assert not walking.move(encoded("no"))
    with pytest.raises(GrammarError, match="token 0 of the response is excluded"):
        list(walking.masks(encoded("no"), [], [END]))
    assert walking.move(encoded('{"a"'))


def test_a_grammar_that_grows_without_limit_is_ended_by_the_limits() -> None:
    form = json.dumps({"grammars": [{"lark_grammar": "start: /(a{1,5000}){1,5000}b/"}]})
    walking, response = follower(form), list[int]()
    with pytest.raises(GrammarError, match="lexer error"):
        for _ in range(2000):
            response += encoded("a")
            walking.move(response)
            walking.mask([END])


def test_forced_tokens_are_those_without_an_alternative() -> None:
    form = json.dumps({"grammars": [{"lark_grammar": 'start: "yes, " ("a" | "b")'}]})
    walking = follower(form)
    assert tokenizer().decode_str(walking.forced()) in ("yes, ", "yes,")
    assert walking.move(encoded("yes, "))
    assert walking.forced() == []


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4), st.booleans()), max_size=12))
def test_forced_tokens_and_kept_ones_are_those_of_a_fresh_matcher(walk: list[tuple[int, int, bool]]) -> None:
    form = json.dumps({"grammars": [{"json_schema": {"type": "array", "items": {"const": "quick brown"}}}]})
    walking, response, decided = follower(form), list[int](), 0
    assert walking.move(response)
    for num_added, num_dropped, decides in walk:
        del response[max(decided, len(response) - num_dropped) :]
        for _ in range(num_added):
            fresh = follower(form)
            assert walking.move(response[decided:], decided) and fresh.move(response)
            assert walking.forced() == fresh.forced()
            choices = [token for token in allowed(walking.mask([])) if token != END]
            response += choices[:1]
        assert walking.move(response[decided:], decided)
        decided = len(response) if decides else decided


def test_a_forced_text_is_spelled_once_while_the_response_follows_it() -> None:
    form = json.dumps({"grammars": [{"json_schema": {"const": "the quick fox " * 20}}]})
    walking, spelled = follower(form), list[int]()
    matcher = walking._matcher
    walking._matcher = CountingMatcher(matcher, spelled)  # type: ignore[assignment]
    assert walking.move([])
    forced = walking.forced()
    for length in range(1, 100):
        assert walking.move(forced[:length]) and walking.forced() == forced[length:]
        assert walking.num_allowed(forced[:length], [*forced[length : length + 5], 3], [END]) >= 5
    assert len(spelled) == 1
    assert walking.move([]) and walking.forced() == forced and len(spelled) == 1
    one_by_one = [encoded(char)[0] for char in tokenizer().decode_str(forced[:50])]
    assert len(one_by_one) > 50 and walking.move(one_by_one)
    assert walking.forced() and len(spelled) == 2


class CountingMatcher:
    """A matcher that records how often it spells forced text."""

    def __init__(self, matcher: Any, spelled: list[int]) -> None:
        self._matcher, self._spelled = matcher, spelled

    def compute_ff_tokens(self) -> Any:
        self._spelled.append(1)
        return self._matcher.compute_ff_tokens()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)
