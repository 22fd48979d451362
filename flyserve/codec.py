"""The public service's messages to and from what the client shows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from enum import Enum
from typing import Any, TypeVar

from fly.errors import InvalidRequest
from fly.types import (
    Coupling,
    DraftLengthPolicy,
    EntropyEstimator,
    FinishReason,
    Mode,
    Tail,
    Verdict,
)
from flyserve.fields import fill
from flyserve.types import (
    Choice,
    Chunk,
    Deployment,
    Limits,
    Logprobs,
    Message,
    Model,
    Piece,
    RankedToken,
    Response,
    Round,
    Sampling,
    Speculation,
    Statistics,
    Token,
)
from protos.flyserve.v1 import common_pb2, generation_pb2

_MODES = {
    Mode.PLAIN: generation_pb2.SPECULATION_MODE_PLAIN,
    Mode.EXACT: generation_pb2.SPECULATION_MODE_EXACT,
    Mode.FLY: generation_pb2.SPECULATION_MODE_FLY,
}
_TAILS = {
    Tail.REJECT: generation_pb2.TAIL_POLICY_REJECT,
    Tail.CARRY: generation_pb2.TAIL_POLICY_CARRY,
}
_ENTROPIES = {
    EntropyEstimator.TOP_K: generation_pb2.ENTROPY_MEASURE_TOP_K,
    EntropyEstimator.NORMALIZED: generation_pb2.ENTROPY_MEASURE_NORMALIZED,
}
_POLICIES = {
    DraftLengthPolicy.FIXED: generation_pb2.DRAFT_LENGTH_POLICY_FIXED,
    DraftLengthPolicy.GOODPUT: generation_pb2.DRAFT_LENGTH_POLICY_GOODPUT,
}
_COUPLINGS = {
    Coupling.SHARED_NOISE: common_pb2.COUPLING_SHARED_NOISE,
    Coupling.REJECTION: common_pb2.COUPLING_REJECTION,
}
_VERDICTS = {
    generation_pb2.VERDICT_EXACT: Verdict.EXACT,
    generation_pb2.VERDICT_RESCUED: Verdict.RESCUED,
    generation_pb2.VERDICT_CORRECTED: Verdict.CORRECTED,
    generation_pb2.VERDICT_BONUS: Verdict.BONUS,
    generation_pb2.VERDICT_PLAIN: Verdict.PLAIN,
}
_FINISH_REASONS = {
    generation_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    generation_pb2.FINISH_REASON_STOP_TOKEN: FinishReason.STOP_TOKEN,
    generation_pb2.FINISH_REASON_STOP_STRING: FinishReason.STOP_STRING,
}
_OPTIONAL_OF_SPECULATION = (
    "draft_length",
    "window",
    "threshold",
    "sub_drafter",
    "carry_after",
    "guard_stops",
    "guard_excluded",
    "strict_prefix_tokens",
)
E = TypeVar("E", bound=Enum)


def request_to_wire(
    prompt: str | Sequence[int], sampling: Sampling, speculation: Speculation, others: Mapping[str, Any]
) -> generation_pb2.GenerateRequest:
    """What the wire can carry; the server judges it.

    Args:
        prompt: Text, or token ids.
        sampling: How tokens are drawn.
        speculation: How to speculate.
        others: Further fields, by their names on the wire.

    Raises:
        InvalidRequest: A value that the wire cannot carry.
    """
    request = generation_pb2.GenerateRequest()
    if isinstance(prompt, str):
        fill(request, "", {"prompt": prompt})
    else:
        fill(request.prompt_token_ids, "prompt_token_ids.", {"ids": tuple(prompt)})
        request.prompt_token_ids.SetInParent()
    fill(request, "", others)
    fill(request.sampling, "sampling.", _sampling_fields(sampling))
    fill(request.speculation, "speculation.", _speculation_fields(speculation))
    return request


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    coupling = _number(_COUPLINGS, sampling.coupling, "sampling.coupling")
    return {**asdict(sampling), "coupling": coupling}


def _speculation_fields(speculation: Speculation) -> dict[str, Any]:
    policy = _number(_POLICIES, speculation.draft_length_policy, "speculation.draft_length_policy")
    return asdict(speculation) | {
        "draft_length_policy": policy,
        "mode": _number(_MODES, speculation.mode, "speculation.mode"),
        "tail": _number(_TAILS, speculation.tail, "speculation.tail"),
        "entropy": _number(_ENTROPIES, speculation.entropy, "speculation.entropy"),
    }


def _number(known: Mapping[Any, int], name: Enum | None, field: str) -> int | None:
    """The wire's number of a name; None where nothing is said."""
    if name is None:
        return None
    if name not in known:
        listed = ", ".join(each.value for each in known)
        raise InvalidRequest.of(field, f"is {name!r}, must be one of {listed}")
    return known[name]


def _name(known: Mapping[E, int], number: int) -> E | None:
    """The name of a wire's number; None where it says nothing, or something unknown."""
    return next((name for name, known_number in known.items() if known_number == number), None)


def deployment_from_wire(wire: generation_pb2.GenerationInfo) -> Deployment:
    return Deployment(
        target=_model_from_wire(wire.target),
        drafter=_model_from_wire(wire.drafter) if wire.HasField("drafter") else None,
        presets=tuple(wire.presets),
        default_preset=wire.default_speculation.preset,
        version=wire.target.version,
        default=_speculation_from_wire(wire.default_speculation),
        limits=Limits(
            wire.max_new_tokens_limit, wire.draft_length_limit, wire.choices_limit, wire.logprobs_limit
        ),
    )


def _speculation_from_wire(wire: generation_pb2.SpeculationParams) -> Speculation:
    """What is absent is None."""
    given: Any = {field.name: value for field, value in wire.ListFields()}
    return Speculation(
        **{name: given.get(name) for name in _OPTIONAL_OF_SPECULATION},
        preset=wire.preset or None,
        mode=_name(_MODES, wire.mode),
        tail=_name(_TAILS, wire.tail),
        entropy=_name(_ENTROPIES, wire.entropy),
        draft_length_policy=_name(_POLICIES, wire.draft_length_policy),
    )


def _model_from_wire(wire: common_pb2.ModelInfo) -> Model:
    return Model(**{field.name: getattr(wire, field.name) for field in fields(Model)})


def tokenize_to_wire(text: str | Sequence[Message]) -> generation_pb2.TokenizeRequest:
    """A text or a conversation.

    Raises:
        InvalidRequest: It is neither.
    """
    request = generation_pb2.TokenizeRequest()
    if isinstance(text, str):
        fill(request, "", {"text": text})
        return request
    for index, message in enumerate(text):
        fill(request.messages.add(), f"messages[{index}].", asdict(message))
    return request


def pieces_from_wire(wire: generation_pb2.TokenizeResponse) -> tuple[Piece, ...]:
    return tuple(Piece(token, piece) for token, piece in zip(wire.ids, wire.pieces, strict=True))


def chunk_from_wire(wire: generation_pb2.GenerateChunk) -> Chunk:
    return Chunk(
        text=wire.text,
        tokens=_tokens_from_wire(wire.tokens),
        request_id=wire.request_id,
        prompt_tokens=wire.prompt_tokens,
        finish_reason=_FINISH_REASONS.get(wire.finish_reason),
        statistics=_statistics_from_wire(wire.statistics) if wire.HasField("statistics") else None,
        warnings=tuple(wire.warnings),
        choice_index=wire.choice_index,
        rounds=_rounds_from_wire(wire.rounds),
    )


def response_from_wire(wire: generation_pb2.GenerateResponse) -> Response:
    return Response(
        request_id=wire.request_id,
        choices=tuple(_choice_from_wire(choice) for choice in wire.choices),
        prompt_tokens=wire.prompt_tokens,
        warnings=tuple(wire.warnings),
    )


def _choice_from_wire(wire: generation_pb2.Choice) -> Choice:
    return Choice(
        index=wire.index,
        text=wire.text,
        tokens=_tokens_from_wire(wire.tokens),
        finish_reason=_FINISH_REASONS.get(wire.finish_reason),
        statistics=_statistics_from_wire(wire.statistics),
        rounds=_rounds_from_wire(wire.rounds),
    )


def _tokens_from_wire(wire: Any) -> tuple[Token, ...]:
    return tuple(
        Token(
            id=token.id,
            verdict=_VERDICTS.get(token.verdict, Verdict.PLAIN),
            choice=token.choice,
            entropy=token.entropy,
            text=token.text,
            choice_text=token.choice_text,
            logprobs=_logprobs_from_wire(token.logprobs) if token.HasField("logprobs") else None,
        )
        for token in wire
    )


def _rounds_from_wire(wire: Any) -> tuple[Round, ...]:
    names = [field.name for field in fields(Round)]
    return tuple(Round(**{name: getattr(played, name) for name in names}) for played in wire)


def _logprobs_from_wire(wire: generation_pb2.TokenLogprobs) -> Logprobs:
    top = tuple(RankedToken(ranked.id, ranked.text, ranked.logprob) for ranked in wire.top)
    return Logprobs(wire.token, wire.choice, top)


def _statistics_from_wire(wire: generation_pb2.Statistics) -> Statistics:
    return Statistics(**{field.name: getattr(wire, field.name) for field in fields(Statistics)})
