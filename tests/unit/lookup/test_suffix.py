"""Suffix proposals: the index against a brute-force search, and proposals from sequence and cache."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.lookup.index.response_cache import ResponseCache
from services.lookup.index.suffix import FOR_TARGET, SaltedCache, Snippets, SuffixProposer, SuffixRule
from tests.support.linked_cache import LinkedCache


def brute_force(ids: list[int], ngram: tuple[int, ...]) -> list[int]:
    ends = range(len(ids) - 1, len(ngram) - 1, -1)
    return [ids[end] for end in ends if tuple(ids[end - len(ngram) : end]) == ngram]


def proposer(
    cache: ResponseCache, ids: list[int], salt: str = "", rule: SuffixRule | None = None
) -> SuffixProposer:
    made = SuffixProposer(SaltedCache(cache, salt), rule)
    made.update(ids, 0)
    return made


def test_without_an_earlier_occurrence_there_is_no_proposal() -> None:
    assert proposer(LinkedCache(100), [1, 2, 3]).propose(5) == ()
    assert proposer(LinkedCache(100), [1, 2, 1, 2]).propose(0) == ()
    assert proposer(LinkedCache(100), []).propose(5) == ()


def test_it_continues_as_finished_responses_did() -> None:
    cache = LinkedCache(1000)
    for _ in range(8):
        cache.add([1, 2, 3, 4, 5, 6, 7, 8])
    proposal = proposer(cache, [9, 1, 2]).propose(4)
    assert proposal == (3, 4, 5, 6)


def test_it_stops_at_the_end_of_a_response() -> None:
    cache = LinkedCache(1000)
    for _ in range(8):
        cache.add([1, 2, 3])
    assert proposer(cache, [1, 2]).propose(4) == (3,)


def test_a_repeat_needs_sixteen_tokens_and_ends_where_responses_disagree() -> None:
    snippets = Snippets()
    common = list(range(100, 130))
    snippets.add([*common, 1, *range(200, 220), 7])
    snippets.add([*common, 2, *range(200, 220), 8])
    proposer = SuffixProposer(snippets)
    for length, repeated in [(15, ()), (16, common[16:]), (20, common[20:25]), (30, ())]:
        proposer.follow(common[:length], length - 1)
        assert proposer.repeat(5 if length == 20 else 99) == tuple(repeated)
    proposer.follow([*common, 2], 30)
    assert proposer.repeat(99) == (*range(200, 220),)


def test_it_stops_where_the_occurrences_disagree() -> None:
    cache = LinkedCache(1000)
    for last in range(10, 30):
        cache.add([1, 2, 3, last])
    assert proposer(cache, [1, 2]).propose(4) == (3,)


def test_names_from_the_sequence_fill_the_gaps_of_common_wording() -> None:
    cache = LinkedCache(1000)
    for name in range(100, 108):
        cache.add([7, 1, 2, name, 3, 4, 5, 6])
    ids = [2, 50, 9, 2, 50, 9, 2, 50, 9, 7, 1]
    assert proposer(cache, ids).propose(6)[:2] == (2, 50)


def test_dropped_tokens_are_proposed_again_after_the_correction() -> None:
    made = proposer(LinkedCache(100), [1, 2, 30, 5, 6, 7, 8])
    made.update([1, 2, 40, 5], unchanged=2)
    assert made.propose(3) == (6, 7, 8)


def test_the_sequence_itself_counts_more_than_other_responses() -> None:
    cache = LinkedCache(100)
    cache.add([1, 2, 3])
    assert proposer(cache, [1, 2, 4, 1, 2]).propose(1) == (4,)


def for_target(ids: list[int], max_tokens: int = 15) -> tuple[int, ...]:
    return proposer(LinkedCache(100), ids, rule=FOR_TARGET).propose(max_tokens)


def test_one_token_that_occurred_once_is_no_reason_to_draft_for_a_target() -> None:
    ids = [1, 2, 3, 4, 1]
    assert proposer(LinkedCache(100), ids).propose(3) == (2, 3, 4)
    assert for_target(ids) == ()


def test_a_longer_match_supports_a_longer_draft() -> None:
    text, cache = list(range(100, 150)), LinkedCache(100)
    cache.add(text)
    lengths = [len(proposer(cache, text[:match], rule=FOR_TARGET).propose(30)) for match in (1, 2, 4, 8, 16)]
    assert lengths == sorted(lengths) and lengths[0] == 0 < lengths[1] < lengths[4] == 30


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 15))
def test_a_draft_for_a_target_is_supported_token_by_token(ids: list[int], max_tokens: int) -> None:
    proposal = for_target(ids, max_tokens)
    assert len(proposal) <= max_tokens
    assert for_target(ids, 15)[:max_tokens] == proposal
    for number, token in enumerate(proposal):
        assert token in brute_force(
            [*ids, *proposal[:number]], (ids[-1],) if not number else (proposal[number - 1],)
        )


@pytest.mark.parametrize("rule", [SuffixRule(), FOR_TARGET])
def test_a_copy_goes_on_where_short_matches_would_mislead(rule: SuffixRule) -> None:
    common = [1, 2, 3, 4]
    passage = [*range(100, 110), *common, *range(110, 150)]
    misleading = [token for last in range(200, 203) for token in (*common, last)]
    ids = [*passage, *misleading, *passage[:14]]
    assert proposer(LinkedCache(100), ids, rule=rule).propose(20) == tuple(range(110, 130))


@pytest.mark.parametrize("rule", [SuffixRule(), FOR_TARGET])
def test_an_earlier_response_counts_before_the_text_that_it_changed(rule: SuffixRule) -> None:
    text, cache = list(range(100, 150)), LinkedCache(100)
    changed = [*text[:20], 7, *text[21:]]
    cache.add(changed)
    assert proposer(cache, [*text, 9, *text[:10]], rule=rule).propose(20) == tuple(changed[10:30])
