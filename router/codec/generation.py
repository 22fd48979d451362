"""The public service: requests, pieces of responses, statistics, what a deployment serves."""

from collections.abc import Sequence

from fly.statistics import Statistics
from fly.types import Decided, FinishReason, Mode, Refusal, Verdict
from protos.flyserve.v1 import generation_pb2 as pb
from router.request import GenerateRequest, SpeculationParams
from router.response import DeploymentInfo, Ending, Header, Piece
from services.common.codec.shared import model_to_wire, sampling_from_wire

_MODES = {
    pb.SPECULATION_MODE_UNSPECIFIED: "",
    pb.SPECULATION_MODE_PLAIN: Mode.PLAIN.value,
    pb.SPECULATION_MODE_EXACT: Mode.EXACT.value,
    pb.SPECULATION_MODE_FLY: Mode.FLY.value,
}
_MODES_BACK = {name: wire for wire, name in _MODES.items()}
_VERDICTS = {
    Verdict.EXACT: pb.VERDICT_EXACT,
    Verdict.RESCUED: pb.VERDICT_RESCUED,
    Verdict.CORRECTED: pb.VERDICT_CORRECTED,
    Verdict.BONUS: pb.VERDICT_BONUS,
    Verdict.PLAIN: pb.VERDICT_PLAIN,
}
_FINISH_REASONS = {
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
}


def request_from_wire(wire: pb.GenerateRequest) -> GenerateRequest:
    """Takes everything over; an unknown mode becomes its number, for the validation to refuse."""
    by_ids = wire.WhichOneof("input") == "prompt_token_ids"
    return GenerateRequest(
        prompt=tuple(wire.prompt_token_ids.ids) if by_ids else wire.prompt,
        request_id=wire.request_id,
        max_new_tokens=wire.max_new_tokens if wire.HasField("max_new_tokens") else None,
        sampling=sampling_from_wire(wire.sampling),
        seed=wire.sampling.seed if wire.sampling.HasField("seed") else None,
        stop=tuple(wire.stop),
        speculation=speculation_from_wire(wire.speculation),
        priority=wire.priority,
        cache_salt=wire.cache_salt,
    )


def speculation_from_wire(wire: pb.SpeculationParams) -> SpeculationParams:
    return SpeculationParams(
        mode=_MODES.get(wire.mode, str(wire.mode)),
        preset=wire.preset,
        draft_length=wire.draft_length if wire.HasField("draft_length") else None,
        window=wire.window if wire.HasField("window") else None,
        threshold=wire.threshold if wire.HasField("threshold") else None,
        sub_drafter=wire.sub_drafter if wire.HasField("sub_drafter") else None,
    )


def speculation_to_wire(params: SpeculationParams) -> pb.SpeculationParams:
    return pb.SpeculationParams(
        mode=_MODES_BACK[params.mode],
        preset=params.preset,
        draft_length=params.draft_length,
        window=params.window,
        threshold=params.threshold,
        sub_drafter=params.sub_drafter,
    )


def info_to_wire(info: DeploymentInfo) -> pb.GenerationInfo:
    return pb.GenerationInfo(
        target=model_to_wire(info.target),
        drafter=None if info.drafter is None else model_to_wire(info.drafter),
        default_speculation=speculation_to_wire(info.default_speculation),
        max_new_tokens_limit=info.max_new_tokens_limit,
        draft_length_limit=info.draft_length_limit,
    )


def piece_to_wire(piece: Piece, header: Header | None) -> pb.GenerateChunk:
    """A chunk; only the first one of a response carries the header."""
    chunk = pb.GenerateChunk(text=piece.text, tokens=_tokens_to_wire(piece.tokens))
    if header is not None:
        chunk.request_id, chunk.prompt_tokens = header.request_id, header.prompt_tokens
    if piece.ending is not None:
        chunk.finish_reason = _FINISH_REASONS[piece.ending.finish_reason]
        chunk.statistics.CopyFrom(statistics_to_wire(piece.ending.statistics))
        chunk.warnings.extend(piece.ending.warnings)
    return chunk


def response_to_wire(header: Header, pieces: Sequence[Piece], ending: Ending) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        request_id=header.request_id,
        text="".join(piece.text for piece in pieces),
        tokens=[token for piece in pieces for token in _tokens_to_wire(piece.tokens)],
        finish_reason=_FINISH_REASONS[ending.finish_reason],
        statistics=statistics_to_wire(ending.statistics),
        prompt_tokens=header.prompt_tokens,
        warnings=ending.warnings,
    )


def _tokens_to_wire(tokens: Sequence[Decided]) -> list[pb.Token]:
    return [
        pb.Token(id=t.token, verdict=_VERDICTS[t.verdict], choice=t.choice, entropy=t.entropy) for t in tokens
    ]


def statistics_to_wire(statistics: Statistics) -> pb.Statistics:
    refusals = statistics.refusals
    return pb.Statistics(
        rounds=statistics.rounds,
        drafted=statistics.drafted,
        emitted=statistics.emitted,
        accepted=statistics.accepted,
        rescued=statistics.rescued,
        rejected_by_gate=refusals[Refusal.GATE],
        rejected_by_window=refusals[Refusal.WINDOW],
        rejected_by_tail=refusals[Refusal.TAIL],
        rejected_by_guard=refusals[Refusal.GUARD],
        rejected_by_exact=refusals[Refusal.EXACT],
        tau=statistics.tau,
        drafter_forwards=statistics.drafter_forwards,
        sub_drafter_tokens=statistics.sub_drafter_tokens,
        draft_s=statistics.draft_s,
        verify_s=statistics.verify_s,
        wire_s=statistics.wire_s,
        wire_bytes=statistics.wire_bytes,
        time_to_first_token_s=statistics.time_to_first_token_s,
        total_s=statistics.total_s,
        seed=statistics.seed,
        replays=statistics.replays,
    )
