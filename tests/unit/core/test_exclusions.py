"""Drafts up to the first token that the sampling parameters exclude."""

from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.exclusions import num_allowed
from flyserve.core.request import SamplingParams

TOKENS = st.integers(0, 5)
BIASES = st.dictionaries(TOKENS, st.sampled_from([-float("inf"), -100.0, -99.0, 0.0, 100.0]))


@given(st.lists(TOKENS), BIASES, st.lists(TOKENS, max_size=2), st.integers(0, 6), st.integers(0, 6))
def test_it_is_the_longest_beginning_without_an_excluded_token(
    drafts: list[int], biases: dict[int, float], stops: list[int], least: int, num_before: int
) -> None:
    sampling = SamplingParams(logit_bias=biases, stop_token_ids=tuple(stops), min_tokens=least)
    excluded = [
        biases.get(token, 0) <= -100 or (token in stops and num_before + index < least)
        for index, token in enumerate(drafts)
    ]
    assert num_allowed(sampling, drafts, num_before) == [*excluded, True].index(True)
