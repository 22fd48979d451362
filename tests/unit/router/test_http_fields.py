"""Fields of a request's body: dropped ones, rejected ones, defaults from the model's generation config."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyserve.core.errors import ConfigError, InvalidRequest
from flyserve.core.request import SamplingParams
from router.config import LimitsConfig
from router.http.chat import ChatRequest
from router.http.completions import CompletionRequest
from router.http.fields import SharedFields
from router.http.known_fields import IGNORED, UNSERVED
from router.http.parsing import parse
from router.http.priorities import priority_of
from router.http.responses.fields import ResponsesRequest
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer, sampling_defaults
from tests.contract.fakes import save_tokenizer

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
LIMITS = LimitsConfig()
COMPLETION = {"model": "m", "prompt": "p"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RESPONSE = {"model": "m", "input": "i"}
LEAST = [(CompletionRequest, COMPLETION), (ChatRequest, CHAT), (ResponsesRequest, RESPONSE)]
NAMES = sorted({name for model, _ in LEAST for name in model.model_fields} | {*UNSERVED, *IGNORED})


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(NAMES) | st.text(), JSON, max_size=4))
def test_whatever_a_body_holds_it_is_taken_or_rejected_by_name(data: dict[str, Any]) -> None:
    for model, least in LEAST:
        try:
            taken = parse(model, {**least, **data}, LIMITS)
        except InvalidRequest as error:
            assert error.violations and all(each.reason for each in error.violations)
            assert "\n" not in str(error).replace(str(data), "")
        else:
            assert isinstance(taken, SharedFields) and taken.model == data.get("model", "m")


@pytest.mark.parametrize("name", sorted(UNSERVED))
def test_a_field_of_elsewhere_is_refused_but_for_values_that_request_nothing(name: str) -> None:
    others = [(model, body) for model, body in LEAST if name not in model.model_fields]
    for model, body in others:
        for idle in (None, *UNSERVED[name].idle):
            parse(model, {**body, name: idle}, LIMITS)
        with pytest.raises(InvalidRequest, match=f"{name} is .*not supported") as caught:
            parse(model, {**body, name: "something else"}, LIMITS)
        assert caught.value.violations[0].reason == "unsupported_parameter"
    assert others, "a field that all APIs serve needs no entry"


def test_a_truth_value_is_no_number() -> None:
    with pytest.raises(InvalidRequest, match="best_of is True, is not supported here: use n"):
        parse(CompletionRequest, {**COMPLETION, "best_of": True}, LIMITS)


@pytest.mark.parametrize("given", [{"best_of": 1}, {"best_of": 3, "n": 3}, {"best_of": None, "n": 2}])
def test_the_best_of_n_choices_are_all_of_them(given: dict[str, Any]) -> None:
    assert parse(CompletionRequest, {**COMPLETION, **given}, LIMITS).n == given.get("n")


@pytest.mark.parametrize(
    ("given", "limit", "expected"),
    [
        ({}, 5, (0, None)),
        ({"priority": 5}, 5, (-5, None)),
        ({"priority": -5}, 5, (5, None)),
        ({"priority": 0, "service_tier": "auto"}, 5, (0, "default")),
        ({"service_tier": "default"}, 5, (0, "default")),
        ({"service_tier": "flex"}, 5, (-1, "flex")),
        ({"service_tier": "scale"}, 5, (0, "default")),
        ({"service_tier": "fast"}, 5, (1, "priority")),
        ({"service_tier": "priority"}, 5, (1, "priority")),
        ({"service_tier": "priority"}, 0, (0, "default")),
    ],
)
def test_a_priority_is_higher_first_whatever_its_name(
    given: dict[str, Any], limit: int, expected: tuple[int, str | None]
) -> None:
    assert priority_of(parse(CompletionRequest, {**COMPLETION, **given}, LIMITS), limit) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, SamplingParams(temperature=1.0)),
        ({"do_sample": False, "temperature": 0.5}, SamplingParams()),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, SamplingParams(temperature=0.6, top_p=0.9)),
        (
            {"top_k": 20, "repetition_penalty": 1.05, "min_p": None},
            SamplingParams(1.0, 20, repetition_penalty=1.05),
        ),
        ({"top_k": float("inf"), "top_p": float("nan"), "min_p": 10**400}, SamplingParams(temperature=1.0)),
    ],
)
def test_a_model_says_how_it_is_sampled(
    tmp_path: Path, said: dict[str, Any], expected: SamplingParams
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(said), encoding="utf-8")
    assert sampling_defaults(tmp_path) == expected


def test_without_a_generation_config_sampling_is_openais(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    ("content", "part"), [(b"{% if %}", "line 1"), (b"\xff", "cannot be read"), (None, "cannot be read")]
)
def test_a_template_that_is_none_is_named_at_the_start(
    tmp_path: Path, content: bytes | None, part: str
) -> None:
    tokenizer, file = Tokenizer.load(save_tokenizer(tmp_path)), tmp_path / "chat.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=part):
        ChatTemplate(tokenizer, file)


@pytest.mark.parametrize(
    ("source", "variables", "message"),
    [
        (
            "{{ raise_exception('no ' ~ messages[0].content) }}",
            {},
            "messages are rejected by the model's chat template: no hello",
        ),
        ("{{ messages.__class__.__mro__ }}", {}, "messages cannot be rendered .* fails in line 1"),
        ("a\n{{ 1 / 0 }}", {}, "messages cannot be rendered .* fails in line 2"),
        ("{{ messages[0].content.x.y }}", {}, "messages cannot be rendered .* fails in line 1"),
        ("{{ 1 }}", {"messages": []}, "chat_template_kwargs.messages must not be set"),
        (
            "{{ 1 }}",
            {"add_generation_prompt": 1, "tools": []},
            r"\.add_generation_prompt must .*; .*\.tools must",
        ),
        ("{{ 1 }}", {"namespace": 1, "self": 1}, "chat_template_kwargs.namespace must not be set"),
        ("{{ 1 }}", {"tokenize": 1}, "chat_template_kwargs.tokenize must not be set"),
    ],
)
def test_a_template_fails_in_its_own_words(
    tmp_path: Path, source: str, variables: dict[str, Any], message: str
) -> None:
    tokenizer, file = Tokenizer.load(save_tokenizer(tmp_path)), tmp_path / "chat.jinja"
    file.write_text(source, encoding="utf-8")
    with pytest.raises(InvalidRequest, match=message) as caught:
        ChatTemplate(tokenizer, file).render([{"role": "user", "content": "hello"}], variables)
    assert not {"Error", "Undefined", "jinja", "object"} & set(re.findall("[A-Z]?[a-z]+", str(caught.value)))


def test_a_template_may_have_the_tags_of_transformers(tmp_path: Path) -> None:
    tokenizer, file = Tokenizer.load(save_tokenizer(tmp_path)), tmp_path / "chat.jinja"
    file.write_text("{% generation %}{{ messages[0].content }}<eos>{% endgeneration %}{{ tools }}", "utf-8")
    template = ChatTemplate(tokenizer, file)
    said = [{"role": "user", "content": "hello"}]
    assert template.takes_tools
    assert template.render(said, {}) == (*tokenizer.encode("hello"), 0, *tokenizer.encode("None"))


@pytest.mark.parametrize(("seed", "drawn"), [(-1, None), (-5, 2**64 - 5), (0, 0), (7, 7)])
def test_a_seed_of_minus_one_asks_for_any(seed: int, drawn: int | None) -> None:
    body = parse(CompletionRequest, {**COMPLETION, "seed": seed}, LIMITS)
    assert body.sampling(SamplingParams()).seed == drawn
