"""The presets have the documented parameters, and the protocol names each of them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flyserve.core.presets import EXACT, PRESETS
from flyserve.core.rule import tail_length
from flyserve.core.types import EntropyEstimator, FlyRule, TailPolicy

ROOT = Path(__file__).parents[3]


def test_flyserve_has_the_documented_parameters() -> None:
    assert PRESETS["flyserve"] == FlyRule(
        threshold=0.3,
        window=2,
        min_following=2,
        tail=TailPolicy.REJECT,
        entropy=EntropyEstimator.TOP_K,
        guard_stops=True,
        guard_excluded=True,
        strict_prefix_tokens=2,
        max_logprob_gap=0.45,
    )


def test_none_carries_and_only_vllm_shrinks() -> None:
    assert not [name for name, rule in PRESETS.items() if rule.tail is TailPolicy.CARRY]
    assert [name for name, rule in PRESETS.items() if rule.shrinks] == ["vllm"]


def test_only_official_drafts_as_its_published_loop() -> None:
    assert [name for name, rule in PRESETS.items() if rule.reproducible_drafts] == ["official"]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_protocol_names_every_preset(preset: str) -> None:
    proto = (ROOT / "protos/flyserve/v1/generation.proto").read_text(encoding="utf-8")
    (line,) = [line for line in proto.splitlines() if "Name of the rule that mode fly starts from" in line]
    assert preset in line


@pytest.mark.parametrize(
    ("rule", "drafts", "tail"),
    [
        (EXACT, 15, 0),
        (PRESETS["official"], 15, 6),
        (PRESETS["official"], 4, 4),
        (PRESETS["vllm"], 15, 6),
        (PRESETS["vllm"], 4, 3),
        (PRESETS["vllm"], 1, 1),
        (PRESETS["flyserve"], 15, 2),
        (PRESETS["flyserve"], 0, 0),
        (replace(PRESETS["flyserve"], tail=TailPolicy.CARRY, carry_after=0), 15, 0),
    ],
)
def test_the_tail_is_the_part_that_the_rule_cannot_rescue(rule: FlyRule, drafts: int, tail: int) -> None:
    assert tail_length(rule, drafts) == tail


@given(st.floats(0.065, 0.61), st.floats(0, 0.45))
def test_the_gate_is_open_to_what_the_limit_on_the_gap_allows(best: float, gap: float) -> None:
    """Two tokens so close are uncertain, if the first has a share of 6.5% or more."""
    second = best * math.exp(-gap)
    assume(best + second <= 1)
    assert -(best * math.log(best) + second * math.log(second)) >= PRESETS["flyserve"].threshold
