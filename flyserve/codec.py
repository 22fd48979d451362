"""The public service's messages to and from what the client shows."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from fly.types import FinishReason, Mode, Verdict
from flyserve.types import Chunk, Response, Sampling, Speculation, Statistics, Token
from protos.flyserve.v1 import common_pb2, generation_pb2

_MODES = {
    Mode.PLAIN: generation_pb2.SPECULATION_MODE_PLAIN,
    Mode.EXACT: generation_pb2.SPECULATION_MODE_EXACT,
    Mode.FLY: generation_pb2.SPECULATION_MODE_FLY,
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


def request_to_wire(
    prompt: str | Sequence[int],
    max_new_tokens: int | None,
    sampling: Sampling,
    speculation: Speculation,
    stop: Sequence[str],
) -> generation_pb2.GenerateRequest:
    request = generation_pb2.GenerateRequest(
        max_new_tokens=max_new_tokens,
        sampling=common_pb2.SamplingParams(**asdict(sampling)),
        speculation=_speculation_to_wire(speculation),
        stop=stop,
    )
    if isinstance(prompt, str):
        request.prompt = prompt
    else:
        request.prompt_token_ids.ids.extend(prompt)
    return request


def _speculation_to_wire(speculation: Speculation) -> generation_pb2.SpeculationParams:
    said = asdict(speculation)
    mode = _MODES.get(said.pop("mode"), generation_pb2.SPECULATION_MODE_UNSPECIFIED)
    return generation_pb2.SpeculationParams(mode=mode, **said)


def chunk_from_wire(wire: generation_pb2.GenerateChunk) -> Chunk:
    return Chunk(
        text=wire.text,
        tokens=_tokens_from_wire(wire.tokens),
        request_id=wire.request_id,
        prompt_tokens=wire.prompt_tokens,
        finish_reason=_FINISH_REASONS.get(wire.finish_reason),
        statistics=_statistics_from_wire(wire.statistics) if wire.HasField("statistics") else None,
        warnings=tuple(wire.warnings),
    )


def response_from_wire(wire: generation_pb2.GenerateResponse) -> Response:
    return Response(
        request_id=wire.request_id,
        text=wire.text,
        tokens=_tokens_from_wire(wire.tokens),
        finish_reason=_FINISH_REASONS.get(wire.finish_reason),
        statistics=_statistics_from_wire(wire.statistics),
        prompt_tokens=wire.prompt_tokens,
        warnings=tuple(wire.warnings),
    )


def _tokens_from_wire(wire: Any) -> tuple[Token, ...]:
    return tuple(
        Token(token.id, _VERDICTS.get(token.verdict, Verdict.PLAIN), token.choice, token.entropy)
        for token in wire
    )


def _statistics_from_wire(wire: generation_pb2.Statistics) -> Statistics:
    return Statistics(**{field.name: getattr(wire, field.name) for field in fields(Statistics)})
