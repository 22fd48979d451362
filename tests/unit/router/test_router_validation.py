"""Requests: what is refused, what is filled in, and the rule that comes of it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fly.errors import ConfigError, InvalidRequest
from fly.messages import ModelInfo, Role
from fly.presets import EXACT, PRESETS
from fly.types import Mode, SamplingParams
from router.config import RouterConfig
from router.planning import plan_speculation
from router.request import GenerateRequest, PreparedRequest, SpeculationParams
from router.validation import prepare
from services.common.config import parse

TARGET = ModelInfo(Role.TARGET, "big", "w", "a", "t", 100, 64, "float32", 1, 0, "")
CONFIG = RouterConfig(model=Path("model"), targets=("127.0.0.1:1",))
PROMPT = (5, 6, 7)


def prepared(target: ModelInfo = TARGET, **fields: Any) -> PreparedRequest:
    request = GenerateRequest(**{"prompt": PROMPT, **fields})
    return prepare(request, lambda text: [ord(letter) % 100 for letter in text], (0, 1), target, CONFIG)


def faults(**fields: Any) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        prepared(**fields)
    return [violation.field for violation in caught.value.violations]


def test_defaults_fill_in_what_is_absent() -> None:
    request = prepared()
    assert request.max_new_tokens == 61 and not request.warnings and request.request_id
    assert request.sampling.stop_token_ids == (0, 1)
    assert request.plan.mode is Mode.FLY and request.plan.rule == PRESETS["vllm"]
    assert (request.plan.draft_length, request.plan.sub_drafter) == (15, True)


def test_max_new_tokens_is_cut_to_the_context_with_a_warning_only_where_it_was_asked_for() -> None:
    assert prepared(max_new_tokens=61).warnings == ()
    request = prepared(max_new_tokens=62)
    assert request.max_new_tokens == 61 and "from 62 to 61" in request.warnings[0]
    assert prepared(replace(TARGET, context_length=0), max_new_tokens=4096).max_new_tokens == 4096


def test_a_prompt_must_leave_room_for_one_token() -> None:
    assert prepared(prompt=(5,) * 63).max_new_tokens == 1
    assert faults(prompt=(5,) * 64) == ["prompt_token_ids"]
    assert faults(prompt="x" * 64) == ["prompt"]


def test_the_models_ends_and_the_clients_stop_tokens_both_end_a_response() -> None:
    sampling = SamplingParams(stop_token_ids=(7, 1))
    assert prepared(sampling=sampling).sampling.ending_ids == {7, 1, 0}
    ignoring = prepared(sampling=replace(sampling, ignore_eos=True)).sampling
    assert ignoring.ending_ids == {7, 1}


def test_a_seed_of_zero_is_a_seed() -> None:
    assert prepared(seed=0).sampling.seed == 0
    assert prepared().sampling.seed != prepared().sampling.seed


def test_all_violations_are_collected() -> None:
    sampling = SamplingParams(temperature=math.nan, top_k=101, min_tokens=9)
    asked = SpeculationParams(mode="9", preset="x", window=65)
    assert faults(prompt="", max_new_tokens=8, sampling=sampling, speculation=asked) == [
        "prompt",
        "sampling.min_tokens",
        "sampling.temperature",
        "sampling.top_k",
        "speculation.mode",
        "speculation.preset",
        "speculation.window",
    ]


def test_a_description_names_value_and_limit() -> None:
    with pytest.raises(InvalidRequest, match="max_new_tokens is 9999, must be 1 to 4096"):
        prepared(max_new_tokens=9999)


def test_a_window_keeps_what_its_preset_demands_beyond_it() -> None:
    asked = SpeculationParams(mode="fly", preset="official", window=9, threshold=0.5)
    rule = plan_speculation(asked, CONFIG.speculation).rule
    assert (rule.window, rule.min_following, rule.threshold) == (9, 10, 0.5)


def test_exact_ends_drafts_at_stops_and_plain_drafts_nothing() -> None:
    exact = plan_speculation(SpeculationParams(mode="exact"), CONFIG.speculation)
    assert exact.rule == EXACT and exact.end_at_stop and exact.drafts
    assert not plan_speculation(SpeculationParams(mode="plain"), CONFIG.speculation).drafts
    assert not plan_speculation(SpeculationParams(draft_length=0), CONFIG.speculation).drafts


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({}, "neither registry nor targets"),
        ({"targets": ["a:1"], "registry": "b:1"}, "excludes"),
        ({"targets": ["a:1"], "balancing": "best"}, "least_load, round_robin"),
        ({"targets": ["a:1"], "speculation": {"preset": "vlm"}}, "flyserve, official, paper, vllm"),
        ({"targets": ["a:1"], "speculation": {"draft_length": 65}}, "draft_length"),
        ({"targets": ["a:1"], "max_queue": 3}, "did you mean 'max_queued'"),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(data: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        parse(RouterConfig, {"model": "m", **data}, "test")
