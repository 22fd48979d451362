"""The public service's requests: what a client asks for."""

from typing import Any

from fly.types import DraftLengthPolicy, EntropyEstimator, Mode, Tail
from protos.flyserve.v1 import generation_pb2 as pb
from router.requests.request import GenerateRequest, ReceivedChoice, Resumption, SpeculationParams
from services.common.codec.shared import sampling_from_wire

_MODES = {
    pb.SPECULATION_MODE_UNSPECIFIED: "",
    pb.SPECULATION_MODE_PLAIN: Mode.PLAIN.value,
    pb.SPECULATION_MODE_EXACT: Mode.EXACT.value,
    pb.SPECULATION_MODE_FLY: Mode.FLY.value,
}
_TAILS = {
    pb.TAIL_POLICY_UNSPECIFIED: "",
    pb.TAIL_POLICY_REJECT: Tail.REJECT.value,
    pb.TAIL_POLICY_CARRY: Tail.CARRY.value,
}
_ENTROPIES = {
    pb.ENTROPY_MEASURE_UNSPECIFIED: "",
    pb.ENTROPY_MEASURE_TOP_K: EntropyEstimator.TOP_K.value,
    pb.ENTROPY_MEASURE_NORMALIZED: EntropyEstimator.NORMALIZED.value,
}
_POLICIES = {
    pb.DRAFT_LENGTH_POLICY_UNSPECIFIED: "",
    pb.DRAFT_LENGTH_POLICY_FIXED: DraftLengthPolicy.FIXED.value,
    pb.DRAFT_LENGTH_POLICY_GOODPUT: DraftLengthPolicy.GOODPUT.value,
}
_MODES_BACK = {name: wire for wire, name in _MODES.items()}
_TAILS_BACK = {name: wire for wire, name in _TAILS.items()}
_ENTROPIES_BACK = {name: wire for wire, name in _ENTROPIES.items()}
_POLICIES_BACK = {name: wire for wire, name in _POLICIES.items()}


def request_from_wire(wire: pb.GenerateRequest) -> GenerateRequest:
    """Takes everything over; an unknown mode becomes its number, for the validation to reject.

    Raises:
        InvalidRequest: The coupling is unknown.
    """
    by_ids = wire.WhichOneof("input") == "prompt_token_ids"
    return GenerateRequest(
        prompt=tuple(wire.prompt_token_ids.ids) if by_ids else wire.prompt,
        request_id=wire.request_id,
        max_new_tokens=_given(wire, "max_new_tokens"),
        sampling=sampling_from_wire(wire.sampling),
        seed=_given(wire.sampling, "seed"),
        stop=tuple(wire.stop),
        speculation=speculation_from_wire(wire.speculation),
        priority=wire.priority,
        cache_salt=wire.cache_salt,
        n=wire.n if wire.HasField("n") else 1,
        logprobs=_given(wire, "logprobs"),
        resume=_resumption_from_wire(wire.resume) if wire.HasField("resume") else None,
    )


def _resumption_from_wire(wire: pb.Resumption) -> Resumption:
    received = (
        ReceivedChoice(choice.index, tuple(choice.token_ids), choice.is_finished) for choice in wire.choices
    )
    return Resumption(tuple(received), wire.weight_fingerprint)


def speculation_from_wire(wire: pb.SpeculationParams) -> SpeculationParams:
    """Takes everything over; of an enumeration, a value without a name here becomes its number."""
    return SpeculationParams(
        mode=_MODES.get(wire.mode, str(wire.mode)),
        preset=wire.preset,
        draft_length=_given(wire, "draft_length"),
        sub_drafter=_given(wire, "sub_drafter"),
        window=_given(wire, "window"),
        threshold=_given(wire, "threshold"),
        tail=_TAILS.get(wire.tail, str(wire.tail)),
        carry_after=_given(wire, "carry_after"),
        guard_stops=_given(wire, "guard_stops"),
        guard_excluded=_given(wire, "guard_excluded"),
        strict_prefix_tokens=_given(wire, "strict_prefix_tokens"),
        entropy=_ENTROPIES.get(wire.entropy, str(wire.entropy)),
        draft_length_policy=_POLICIES.get(wire.draft_length_policy, str(wire.draft_length_policy)),
    )


def mode_to_wire(mode: str) -> pb.SpeculationMode.ValueType:
    """The wire's number of a mode's name."""
    return _MODES_BACK[mode]


def speculation_to_wire(params: SpeculationParams) -> pb.SpeculationParams:
    return pb.SpeculationParams(
        mode=_MODES_BACK[params.mode],
        preset=params.preset,
        draft_length=params.draft_length,
        sub_drafter=params.sub_drafter,
        window=params.window,
        threshold=params.threshold,
        tail=_TAILS_BACK[params.tail],
        carry_after=params.carry_after,
        guard_stops=params.guard_stops,
        guard_excluded=params.guard_excluded,
        strict_prefix_tokens=params.strict_prefix_tokens,
        entropy=_ENTROPIES_BACK[params.entropy],
        draft_length_policy=_POLICIES_BACK[params.draft_length_policy],
    )


def _given(message: Any, field: str) -> Any:
    """An optional field; None where it is absent."""
    return getattr(message, field) if message.HasField(field) else None
