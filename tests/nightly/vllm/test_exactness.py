"""Through vLLM: exact equals plain and the builtin engine, `official` equals the builtin engine's."""

import pytest
from transformers import LlamaForCausalLM

from demo.tasks import Task
from flyserve import DraftLength, SpeculationParams
from flyserve.core.request import SamplingParams
from flyserve.core.response import Response
from flyserve.core.types import Mode
from tests.support.comparison import (
    GREEDY,
    answers,
    assert_only_a_tie,
    differences,
    gap_after,
    ids_of,
    prompt_ids,
)
from tests.support.processes import Deployment

pytestmark = pytest.mark.timeout(1800)

MOST_TAU_DIFFERENCE = 0.01
PLAIN = SpeculationParams(mode=Mode.PLAIN)
EXACT = SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=15), sub_drafter=False)
OFFICIAL = SpeculationParams(
    mode=Mode.FLY, preset="official", draft_length=DraftLength(max=15), sub_drafter=False
)


class Expected:
    """The builtin engine's responses, and whether others differ from them by more than a tie."""

    def __init__(self, builtin: Deployment, problems: list[Task], reference: LlamaForCausalLM) -> None:
        self._address, self._problems, self._reference = builtin.router.address, problems, reference
        self._prompts = prompt_ids(self._address, problems)

    def assert_equals(
        self, router: str, speculation: SpeculationParams, sampling: SamplingParams = GREEDY
    ) -> None:
        responses = [
            answers(address, self._problems, speculation, sampling) for address in (self._address, router)
        ]
        expected, found = ([ids_of(response) for response in each] for each in responses)

        def gap(problem: int, position: int) -> float:
            before = self._prompts[problem] + expected[problem][:position]
            return gap_after(self._reference, before, sampling.temperature, 1000 + problem)

        assert_only_a_tie(differences(expected, found, gap))
        if speculation.mode is not Mode.PLAIN:
            own, theirs = map(tau_of, responses)
            print(f"tau of {speculation.preset or speculation.mode}: builtin {own:.4f}, vLLM {theirs:.4f}")
            assert theirs == pytest.approx(own, rel=MOST_TAU_DIFFERENCE)


def tau_of(responses: list[Response]) -> float:
    """Return the tokens per round with a draft, over all responses."""
    statistics = [response.statistics for response in responses]
    return sum(each.draft_round_tokens for each in statistics) / sum(each.draft_rounds for each in statistics)


@pytest.fixture(scope="module")
def expected(builtin: Deployment, problems: list[Task], reference: LlamaForCausalLM) -> Expected:
    return Expected(builtin, problems, reference)


@pytest.mark.parametrize("speculation", [PLAIN, EXACT, OFFICIAL], ids=["plain", "exact", "official"])
def test_greedy_responses_are_those_of_the_builtin_engine(
    router: str, expected: Expected, speculation: SpeculationParams
) -> None:
    expected.assert_equals(router, speculation)


@pytest.mark.parametrize("speculation", [PLAIN, EXACT], ids=["plain", "exact"])
def test_sampled_responses_are_those_of_the_builtin_engine(
    router: str, expected: Expected, speculation: SpeculationParams
) -> None:
    expected.assert_equals(router, speculation, SamplingParams(temperature=0.8, top_k=20, top_p=0.95))
