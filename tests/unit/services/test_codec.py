"""Each message of the internal streams decodes to the value that was encoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import (
    Close,
    Draft,
    DraftStep,
    Extend,
    Load,
    Open,
    Opened,
    ProposalCounts,
    Queued,
    Stale,
    StaleReason,
    StepTimes,
    Verification,
    VerifyStep,
)
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceUpdate
from flyserve.core.types import Coupling, EntropyEstimator, PositionLogprobs, SparseDistribution
from flyserve.v1 import common_pb2, drafter_pb2, target_pb2
from flyserve.wire.streams import (
    draft_request_from_wire,
    draft_request_to_wire,
    draft_response_from_wire,
    draft_response_to_wire,
    verify_request_from_wire,
    verify_request_to_wire,
    verify_response_from_wire,
    verify_response_to_wire,
)

WORD, SHORT = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
DOUBLE = st.floats(allow_nan=False)
SINGLE = st.floats(allow_nan=False, width=32)


def tuples(values: st.SearchStrategy, max_size: int = 4) -> st.SearchStrategy:
    return st.lists(values, max_size=max_size).map(tuple)


BIASES = st.dictionaries(SHORT, SINGLE, max_size=4)
SAMPLING = st.builds(
    SamplingParams,
    *[DOUBLE, SHORT, DOUBLE, DOUBLE, DOUBLE, DOUBLE, DOUBLE, BIASES, SHORT, st.booleans()],
    *[tuples(SHORT), st.none() | WORD, st.sampled_from(Coupling)],
)
DISTRIBUTIONS = tuples(st.builds(SparseDistribution, tuples(SHORT), tuples(DOUBLE)))
LOGPROBS = st.builds(PositionLogprobs, st.none() | SINGLE, SINGLE, tuples(st.tuples(SHORT, SINGLE)))
UPDATES = st.builds(SequenceUpdate, WORD, SHORT, tuples(SHORT), SHORT, WORD)
TIMES = st.builds(StepTimes, WORD, WORD, SHORT, SHORT, SHORT, SHORT)
LOADS = st.builds(Load, SHORT, SHORT, *[WORD] * 6)
STALE = st.builds(Stale, WORD, st.sampled_from(StaleReason))
NOTICES = STALE | st.just(Queued()) | st.just(Opened())
OPENING = [st.text(max_size=9), SHORT, SAMPLING, st.integers(-(2**31), 2**31 - 1), WORD, st.text(max_size=9)]
GUESSES = st.builds(ProposalCounts, SHORT, SHORT, SHORT)
CLOSING = st.builds(Close, st.none() | UPDATES)
TO_TARGET = (
    st.builds(
        Open,
        *OPENING,
        st.sampled_from(EntropyEstimator),
        num_logprobs=st.none() | SHORT,
        without_entropies=st.booleans(),
        with_gaps=st.booleans(),
    )
    | st.builds(VerifyStep, UPDATES, SHORT, DISTRIBUTIONS)
    | st.builds(Extend, UPDATES, SHORT, st.booleans())
)
FROM_TARGET = NOTICES | st.builds(
    Verification,
    *[
        WORD,
        tuples(SHORT),
        tuples(SINGLE),
        st.frozensets(SHORT),
        tuples(LOGPROBS),
        tuples(SINGLE),
        TIMES,
        LOADS,
    ],
)
TO_DRAFTER = st.builds(
    Open, *OPENING, without_sub_drafter=st.booleans(), without_copies=st.booleans()
) | st.builds(DraftStep, UPDATES, SHORT, st.booleans(), SHORT)
FROM_DRAFTER = NOTICES | st.builds(
    Draft,
    WORD,
    tuples(SHORT),
    SHORT,
    SHORT,
    DISTRIBUTIONS,
    TIMES,
    LOADS,
    GUESSES,
    SHORT,
    SHORT,
    tuples(tuples(SHORT)),
)


@given(TO_TARGET | CLOSING)
def test_requests_to_a_target(message: Open | VerifyStep | Extend | Close) -> None:
    wire = verify_request_to_wire(message).SerializeToString()
    assert verify_request_from_wire(target_pb2.VerifyRequest.FromString(wire)) == message


@given(FROM_TARGET)
def test_answers_of_a_target(message: Verification | Stale | Queued | Opened) -> None:
    wire = verify_response_to_wire(message).SerializeToString()
    assert verify_response_from_wire(target_pb2.VerifyResponse.FromString(wire)) == message


@given(TO_DRAFTER | CLOSING)
def test_requests_to_a_drafter(message: Open | DraftStep | Close) -> None:
    wire = draft_request_to_wire(message).SerializeToString()
    assert draft_request_from_wire(drafter_pb2.DraftRequest.FromString(wire)) == message


@given(FROM_DRAFTER)
def test_answers_of_a_drafter(message: Draft | Stale | Queued | Opened) -> None:
    wire = draft_response_to_wire(message).SerializeToString()
    assert draft_response_from_wire(drafter_pb2.DraftResponse.FromString(wire)) == message


def test_what_an_older_peer_leaves_out_has_its_default() -> None:
    wire = target_pb2.VerifyRequest(open=common_pb2.Open())
    opening = verify_request_from_wire(wire)
    assert isinstance(opening, Open)
    assert opening.sampling == SamplingParams() and opening.num_logprobs is None


def test_an_unknown_coupling_is_rejected_by_name() -> None:
    sampling = common_pb2.SamplingParams(coupling=99)  # type: ignore[arg-type]
    wire = target_pb2.VerifyRequest(open=common_pb2.Open(sampling=sampling))
    with pytest.raises(InvalidRequest, match=r"sampling\.coupling is 99"):
        verify_request_from_wire(wire)
