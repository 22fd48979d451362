"""Limits of lists and maps: no field lacks one; estimates of cost; the sizes of errors."""

import json
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, get_args, get_origin

import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from flyserve.core.errors import MOST_VIOLATIONS, FieldViolation, InvalidRequest, cut, refuse
from flyserve.core.request import DraftLength, GenerateRequest, SpeculationParams
from flyserve.v1 import generation_pb2 as pb
from flyserve.wire.status import to_status
from router.config import LimitsConfig
from router.cost import returned_values
from router.http.chat import ChatRequest
from router.http.completions import CompletionRequest
from router.http.errors import reply_to
from router.http.json_body import num_values
from router.http.request_model import AtMost
from router.http.responses.fields import ResponsesRequest
from router.http.tokenization import DetokenizeRequest, TokenizeRequest
from router.requests.prompt_length import check_beginning
from router.requests.validation import check_returned_values
from router.servicer import LIST_LIMITS
from services.common.config_faults import nearest

BODIES = (CompletionRequest, ChatRequest, ResponsesRequest, TokenizeRequest, DetokenizeRequest)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
PROMPTS_OF_IDS = {"CompletionRequest.prompt[][]"}
"""The model's context limits them, and looking at each id is cheap."""
JSON = st.recursive(
    SCALARS | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40
)


def unlimited(kind: Any, metadata: tuple[Any, ...], path: str, seen: set[Any]) -> Iterator[str]:
    """Yield the places of lists and maps in the type of a field without a limit, those of its forms too."""
    is_limited = any(isinstance(each, AtMost) for each in metadata)
    forms = [getattr(each, "json_schema_input_type", None) for each in metadata]
    for form in (
        kind,
        *(form for form in forms if isinstance(form, type | types.UnionType | types.GenericAlias)),
    ):
        yield from unlimited_form(form, is_limited, path, seen)


def unlimited_form(kind: Any, is_limited: bool, path: str, seen: set[Any]) -> Iterator[str]:
    origin = get_origin(kind)
    if origin is Annotated:
        yield from unlimited(get_args(kind)[0], kind.__metadata__, path, seen)
        return
    if (origin or kind) in (list, dict, set, frozenset, tuple) and not is_limited:
        yield path
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
        seen.add(kind)
        for name, field in kind.model_fields.items():
            yield from unlimited(field.annotation, tuple(field.metadata), f"{path}.{name}", seen)
    is_union = origin not in (list, dict, set, frozenset, tuple)
    for inner in get_args(kind):
        # NOTE: a limit in front of a union holds for all its forms; one of a list does not for its items.
        yield from unlimited_form(inner, is_limited and is_union, f"{path}[]", seen)


@pytest.mark.parametrize("body", BODIES)
def test_every_list_and_map_of_a_body_has_a_limit(body: type[BaseModel]) -> None:
    assert {*unlimited_form(body, False, body.__name__, set())} <= PROMPTS_OF_IDS


def test_a_list_without_a_limit_would_be_found() -> None:
    class Inner(BaseModel):
        ids: Annotated[list[int], AtMost(3)] | None = None
        maps: dict[str, int] | None = None

    class Outer(BaseModel):
        inner: Annotated[list[Inner], AtMost("items")]
        lists: Annotated[list[list[int]], AtMost(3)]

    assert list(unlimited_form(Outer, False, "", set())) == [".inner[].maps[]", ".lists[]"]


def repeated_fields(message: Descriptor, seen: set[str]) -> Iterator[str]:
    if message.name in seen:
        return
    seen.add(message.name)
    for field in message.fields:
        if field.is_repeated:
            yield f"{message.name}.{field.name}"
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from repeated_fields(field.message_type, seen)


def test_every_list_and_map_of_the_public_service_has_a_limit() -> None:
    methods, seen = pb.DESCRIPTOR.services_by_name["Generation"].methods, set[str]()
    found = [each for method in methods for each in repeated_fields(method.input_type, seen)]
    assert sorted(found) == sorted(LIST_LIMITS) and len(found) >= 8
    keys = [limit for limit in LIST_LIMITS.values() if isinstance(limit, str)]
    assert set(keys) <= LimitsConfig.model_fields.keys()


def weight(value: Any) -> int:
    """Count the values of parsed JSON, as the limit does, but for the commas between them."""
    if isinstance(value, str):
        return 4
    if isinstance(value, dict):
        return 4 + sum(4 + weight(each) for each in value.values()) + max(0, len(value) - 1)
    if isinstance(value, list):
        return 4 + sum(map(weight, value)) + max(0, len(value) - 1)
    return 0


@given(JSON)
def test_values_are_counted_without_parsing(value: Any) -> None:
    for is_ascii in (True, False):
        assert num_values(
            json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "replace"), 10**9
        ) == weight(value)


@given(st.binary(max_size=200))
def test_anything_can_be_counted(body: bytes) -> None:
    assert num_values(body, 40) >= 0


@given(
    st.lists(
        st.builds(
            FieldViolation, st.text(), st.text(max_size=9) | st.sampled_from(["\x00" * 9000, "ä" * 5000])
        )
    )
)
def test_an_error_is_small_in_every_api(violations: list[FieldViolation]) -> None:
    error = InvalidRequest(*violations)
    assert len(error.violations) <= MOST_VIOLATIONS and bool(error.violations) == bool(violations)
    assert len(reply_to(error).response.body) <= 16_000
    status = to_status(error)
    assert 3 * len(status.message.encode()) + status.ByteSize() * 4 / 3 <= 8192 - 256


def test_nothing_looks_for_more_violations_than_are_reported() -> None:
    looked = []

    def endless() -> Iterator[FieldViolation]:
        while True:
            looked.append(1)
            yield FieldViolation("a", "is wrong")

    with pytest.raises(InvalidRequest) as caught:
        refuse(endless())
    assert len(looked) == len(caught.value.violations) == MOST_VIOLATIONS
    refuse(())


@given(st.text(), st.integers(4, 40))
def test_a_text_is_cut_to_bytes(text: str, most: int) -> None:
    short = cut(text, most)
    assert len(short.encode("utf-8", "replace")) <= most
    assert short == text or short.endswith("...")


def test_a_long_name_has_no_near_one() -> None:
    assert nearest("temperatur", ["temperature"]) == "temperature"
    assert nearest("temperatur" * 10, ["temperatur" * 10 + "e"]) is None


@pytest.mark.parametrize(
    ("logprobs", "prompt_logprobs", "expected"),
    [(None, None, 0), (0, None, 3 * 50), (20, None, 3 * 50 * 21), (None, 4, 7 * 5), (1, 0, 3 * 50 * 2 + 7)],
)
def test_returned_values(logprobs: int | None, prompt_logprobs: int | None, expected: int) -> None:
    request = GenerateRequest(prompt="x", n=3, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    assert returned_values(request, 7, 50) == expected


@pytest.mark.parametrize(
    ("logprobs", "draft", "expected"), [(None, 0, 1), (3, 15, 16 * 4), (20, None, 65 * 21)]
)
def test_evidence_is_counted_at_each_position_of_a_draft(
    logprobs: int | None, draft: int | None, expected: int
) -> None:
    speculation = SpeculationParams(draft_length=DraftLength(draft))
    request = GenerateRequest(prompt="x", logprobs=logprobs, evidence=True, speculation=speculation)
    assert returned_values(request, 0, 1) == expected
    (fault,) = check_returned_values([(replace(request, max_new_tokens=1_000_000), 0)], LimitsConfig())
    assert fault.field == "evidence" and "router.limits.returned_values" in fault.description


@given(st.integers(0, 50), st.text(alphabet="ab ", max_size=2000))
def test_a_text_that_fits_is_never_refused_by_its_beginning(context_length: int, text: str) -> None:
    encoded: list[str] = []

    def encode(text: str) -> list[str]:
        encoded.append(text)
        return text.split()

    found = list(check_beginning("prompt", [text[:7], text[7:]], encode, context_length))
    assert sum(map(len, encoded)) <= 8 * context_length
    assert not found or len(text.split()) > context_length > 0
