"""Requests: what is rejected, what is filled in, and the rule that comes of it."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flyserve.core.errors import ConfigError, InvalidRequest
from flyserve.core.messages import ModelInfo, Role
from flyserve.core.presets import DEFAULT_PRESET, EXACT, PRESETS
from flyserve.core.request import DraftLength, GenerateRequest, SamplingParams, SpeculationParams
from flyserve.core.spans import Span
from flyserve.core.speculation import Speculation
from flyserve.core.types import Coupling, EntropyEstimator, Mode, ResponseLimits, TailPolicy
from router.config import RouterConfig
from router.requests.planning import fly_rule, plan_speculation
from router.requests.request import PreparedRequest
from router.requests.validation import prepare
from router.speculation_config import SpeculationConfig
from services.common.config import parse

TARGET = ModelInfo(Role.TARGET, "big", "w", "a", "t", 100, 64, "float32", 1, 0, "")
CONFIG = RouterConfig(model=Path("model"), targets=("127.0.0.1:1",))
PROMPT = (5, 6, 7)


def _encode(text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
    return tuple(ord(letter) % 100 for letter in text)


TOKENIZER: Any = SimpleNamespace(encode=_encode, eos_ids=(0, 1))


def prepared(target: ModelInfo = TARGET, **fields: Any) -> PreparedRequest:
    request = GenerateRequest(**{"prompt": PROMPT, **fields})
    return prepare(request, TOKENIZER, target, CONFIG)


def up_to(length: int) -> DraftLength:
    return DraftLength(max=length)


def faults(**fields: Any) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        prepared(**fields)
    return [violation.field for violation in caught.value.violations]


def test_defaults_fill_in_what_is_absent() -> None:
    request = prepared()
    assert request.max_new_tokens == 61 and not request.warnings and request.request_id
    assert request.sampling.stop_token_ids == (0, 1)
    assert request.plan.mode is Mode.FLY and request.plan.rule == PRESETS[DEFAULT_PRESET]
    assert (request.plan.draft_length, request.plan.sub_drafter) == (15, True)


def test_max_new_tokens_is_cut_to_the_context_with_a_warning_only_where_it_was_asked_for() -> None:
    assert prepared(max_new_tokens=61).warnings == ()
    request = prepared(max_new_tokens=62)
    assert request.max_new_tokens == 61 and "from 62 to 61" in request.warnings[0]
    assert prepared(replace(TARGET, context_length=0), max_new_tokens=4096).max_new_tokens == 4096
    open_ended = prepared(max_new_tokens=4096, fills_context=True)
    assert (open_ended.max_new_tokens, open_ended.warnings) == (61, ())


def test_a_nucleus_of_0_is_the_most_likely_token() -> None:
    sampling = prepared(sampling=SamplingParams(temperature=1.0, top_k=9, top_p=0.0)).sampling
    assert (sampling.top_k, sampling.top_p) == (1, 1.0)
    assert faults(sampling=SamplingParams(top_p=-0.1)) == ["sampling.top_p"]


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
    assert prepared(sampling=SamplingParams(seed=0)).sampling.seed == 0
    assert prepared().sampling.seed != prepared().sampling.seed


def test_all_violations_are_collected() -> None:
    sampling = SamplingParams(temperature=math.nan, top_k=-1, min_tokens=9)
    asked = SpeculationParams(mode=Mode.FLY, preset="x", window=65)
    assert faults(prompt="", max_new_tokens=8, sampling=sampling, speculation=asked) == [
        "prompt",
        "sampling.min_tokens",
        "sampling.temperature",
        "sampling.top_k",
        "speculation.window",
        "speculation.preset",
    ]


def test_a_fault_names_no_field_that_the_request_leaves_open() -> None:
    assert faults(max_new_tokens=-1) == ["max_new_tokens"]
    least = SamplingParams(min_tokens=5)
    assert faults(max_new_tokens=-1, sampling=least) == ["max_new_tokens", "sampling.min_tokens"]


def test_a_window_keeps_what_its_preset_demands_beyond_it() -> None:
    asked = SpeculationParams(mode=Mode.FLY, preset="official", window=9, threshold=0.5)
    rule = plan_speculation(asked, CONFIG.speculation.plan).rule
    assert (rule.window, rule.min_following, rule.threshold) == (9, 10, 0.5)


def test_every_field_of_the_rule_can_be_changed() -> None:
    asked = SpeculationParams(
        preset="official",
        threshold=0.1,
        tail=TailPolicy.CARRY,
        carry_after=0,
        guard_stops=True,
        guard_excluded=True,
        strict_prefix_tokens=4,
        entropy=EntropyEstimator.NORMALIZED,
        max_logprob_gap=0.5,
        reproducible_drafts=False,
    )
    rule = fly_rule(asked, CONFIG.speculation.plan)
    assert (rule.threshold, rule.tail, rule.carry_after) == (0.1, TailPolicy.CARRY, 0)
    assert (rule.guard_stops, rule.guard_excluded, rule.strict_prefix_tokens) == (True, True, 4)
    assert rule.entropy is EntropyEstimator.NORMALIZED and rule.max_logprob_gap == 0.5
    assert not rule.reproducible_drafts and PRESETS["official"].reproducible_drafts


def test_a_carried_window_neither_shrinks_nor_needs_a_longer_draft() -> None:
    for preset in PRESETS:
        rule = fly_rule(SpeculationParams(preset=preset, tail=TailPolicy.CARRY), CONFIG.speculation.plan)
        assert rule.min_following == rule.window and not rule.shrinks


def test_the_servers_changes_hold_for_its_own_preset_only() -> None:
    default = SpeculationConfig(preset="flyserve", window=4, tail=TailPolicy.REJECT)
    assert fly_rule(SpeculationParams(), default.plan) == default.rule
    assert fly_rule(SpeculationParams(threshold=0.5), default.plan).window == 4
    assert fly_rule(SpeculationParams(preset="flyserve"), default.plan) == PRESETS["flyserve"]


ADVICE: list[tuple[dict[str, Any], str]] = [
    (
        {"mode": Mode.EXACT, "threshold": 0.2, "tail": TailPolicy.CARRY},
        "threshold, speculation.tail have no",
    ),
    ({"mode": Mode.PLAIN, "preset": "vllm"}, "speculation.preset has no effect in mode plain"),
    ({"mode": Mode.EXACT, "exact_in": (Span.DIGITS,)}, "speculation.exact_in has no effect in mode exact"),
    (
        {"mode": Mode.PLAIN, "draft_length": up_to(3)},
        "draft_length.max has no effect in mode plain",
    ),
    (
        {"preset": "official", "draft_length": up_to(6)},
        "a window of 5 does not fit into drafts of 6 tokens",
    ),
    (
        {"preset": "flyserve", "window": 6, "draft_length": up_to(6)},
        "no mismatch can be",
    ),
    ({"preset": "flyserve", "draft_length": up_to(2)}, "no mismatch can be"),
    ({"preset": "flyserve", "tail": TailPolicy.CARRY}, "no window is carried: 2 matches already fill"),
    ({"preset": "flyserve", "carry_after": 1}, "speculation.carry_after has no effect with tail reject"),
    ({"preset": "vllm", "draft_length": up_to(1)}, "no mismatch can be"),
    ({"preset": "vllm", "carry_after": 1}, "speculation.carry_after has no effect with tail reject"),
    ({"mode": Mode.EXACT, "reproducible_drafts": True}, "speculation.reproducible_drafts has no effect"),
]


@pytest.mark.parametrize(("asked", "part"), ADVICE)
def test_what_has_no_effect_is_warned_of(asked: dict[str, Any], part: str) -> None:
    (warning,) = prepared(speculation=SpeculationParams(**asked)).warnings
    assert part in warning


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"mode": Mode.PLAIN, "draft_length": up_to(0)},
        {"mode": Mode.EXACT, "draft_length": up_to(1)},
        {"draft_length": up_to(0)},
        {"preset": "official", "draft_length": up_to(7)},
        {"preset": "flyserve", "draft_length": up_to(3)},
        {"tail": TailPolicy.CARRY, "window": 6, "draft_length": up_to(1), "carry_after": 0},
        {"preset": "vllm", "draft_length": up_to(2)},
    ],
)
def test_what_has_its_effect_is_not_warned_of(asked: dict[str, Any]) -> None:
    assert prepared(speculation=SpeculationParams(**asked)).warnings == ()


def test_filters_and_choices_without_effect_are_warned_of() -> None:
    sampling = SamplingParams(top_k=3, top_p=0.5, min_p=0.1, coupling=Coupling.REJECTION)
    filters, alike = prepared(sampling=sampling, n=2).warnings
    assert filters.startswith("sampling.top_k, sampling.top_p, sampling.min_p, sampling.coupling have no")
    assert "all choices are equal" in alike
    assert prepared(sampling=replace(sampling, temperature=0.5), n=2).warnings == ()


def test_choices_have_seeds_of_their_own_and_the_first_has_the_requests() -> None:
    request = prepared(sampling=SamplingParams(seed=2**64 - 1), n=16, request_id="r")
    choices = request.choices()
    assert choices[0] is request and len(choices) == 16
    assert len({choice.seed for choice in choices}) == 16
    assert all(0 <= choice.seed < 2**64 for choice in choices)
    assert [choice.request_id for choice in choices[1:3]] == ["r#1", "r#2"]
    assert (
        choices[1].sampling.seed
        == prepared(sampling=SamplingParams(seed=2**64 - 1), n=2).choices()[1].sampling.seed
    )


def test_a_carry_beyond_the_window_is_rejected() -> None:
    asked = SpeculationParams(preset="flyserve", carry_after=5, window=4)
    assert faults(speculation=asked) == ["speculation.carry_after"]


def test_exact_ends_drafts_at_stops_and_plain_drafts_nothing() -> None:
    exact = plan_speculation(SpeculationParams(mode=Mode.EXACT), CONFIG.speculation.plan)
    assert exact.rule == EXACT and exact.end_at_stop and exact.drafts
    assert not plan_speculation(SpeculationParams(mode=Mode.PLAIN), CONFIG.speculation.plan).drafts
    assert not plan_speculation(SpeculationParams(draft_length=up_to(0)), CONFIG.speculation.plan).drafts


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({}, "neither registry nor targets"),
        ({"targets": ["a:1"], "registry": "b:1"}, "excludes"),
        (
            {"targets": ["a:1"], "balancing": "best"},
            "'prefix_affinity', 'least_load', 'power_of_two' or 'round_robin'",
        ),
        ({"targets": ["a:1"], "speculation": {"preset": "vlm"}}, "one of flyserve, official, paper, vllm"),
        ({"targets": ["a:1"], "speculation": {"draft_length": {"max": 65}}}, "draft_length.max"),
        (
            {"targets": ["a:1"], "speculation": {"draft_length": {"max_sequences": 0}}},
            "draft_length.max_sequences: is 0.*must be at least 1",
        ),
        (
            {"targets": ["a:1"], "speculation": {"draft_length": {"policy": "goodput"}}},
            "draft_length.policy: cannot be set here: all drafts have draft_length.max tokens",
        ),
        ({"targets": ["a:1"], "max_queue": 3}, "did you mean 'max_queued'"),
        (
            {"targets": ["a:1"], "speculation": {"carry_after": 7}},
            "carry_after is 7, at most the window of 2",
        ),
        ({"targets": ["a:1"], "speculation": {"threshold": float("nan")}}, "threshold"),
    ],
)
def test_a_bad_configuration_says_what_is_wrong(data: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        parse(RouterConfig, {"model": "m", **data}, "test")


def test_the_choices_share_one_prompt_and_each_response_has_a_copy() -> None:
    request = prepared(replace(TARGET, context_length=0), prompt=tuple(range(99)) * 5, n=3)
    assert all(choice.prompt is request.prompt for choice in request.choices())
    responses = [Speculation(each.prompt, EXACT, ResponseLimits(10)) for each in request.choices()]
    responses[0].sequence.extend([1])
    assert responses[1].sequence.ids == list(request.prompt_ids) and len(request.prompt) == 495


def test_one_id_outside_the_vocabulary_is_named_with_its_position() -> None:
    prompt = tuple([1] * 50_000 + [TARGET.vocab_size] + [TARGET.vocab_size + 1])
    with pytest.raises(InvalidRequest) as error:
        prepared(replace(TARGET, context_length=0), prompt=prompt)
    assert [violation.field for violation in error.value.violations] == ["prompt_token_ids.ids[50000]"]


def test_a_target_that_cannot_roll_back_decodes_plainly_alone() -> None:
    target = replace(TARGET, plain_only="its recurrent layers keep a state")
    with pytest.raises(InvalidRequest, match=r"mode.*is fly, must be plain for big: its recurrent layers"):
        prepared(target)
    plain = SpeculationParams(mode=Mode.PLAIN)
    assert prepared(target, speculation=plain).plan.mode is Mode.PLAIN
    with pytest.raises(InvalidRequest, match=r"^prompt_logprobs is 0, must be absent for big: its recurrent"):
        prepared(target, speculation=plain, prompt_logprobs=0)
