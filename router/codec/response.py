"""The public service's responses: pieces, choices, statistics, what a deployment serves."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fly.statistics import Statistics
from fly.types import FinishReason, RejectionReason, Verdict
from protos.flyserve.v1 import generation_pb2 as pb
from router.codec.generation import mode_to_wire, speculation_to_wire
from router.generation.response import (
    DeploymentInfo,
    Ending,
    Header,
    Origin,
    Piece,
    ResponseToken,
    Round,
    TokenLogprobs,
)
from services.common.codec.shared import model_to_wire

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


def info_to_wire(info: DeploymentInfo) -> pb.GenerationInfo:
    return pb.GenerationInfo(
        target=model_to_wire(info.target),
        drafter=None if info.drafter is None else model_to_wire(info.drafter),
        default_speculation=speculation_to_wire(info.default_speculation),
        max_new_tokens_limit=info.max_new_tokens_limit,
        draft_length_limit=info.draft_length_limit,
        choices_limit=info.choices_limit,
        logprobs_limit=info.logprobs_limit,
        presets=info.presets,
    )


def piece_to_wire(index: int, piece: Piece, header: Header | None) -> pb.GenerateChunk:
    """A chunk of one choice; only the first chunk of a response carries the header."""
    chunk = pb.GenerateChunk(
        choice_index=index,
        text=piece.text,
        tokens=_tokens_to_wire(piece.tokens),
        rounds=_rounds_to_wire(piece.rounds),
    )
    if header is not None:
        chunk.request_id, chunk.prompt_tokens = header.request_id, header.prompt_tokens
        if (origin := header.origin) is not None:
            chunk.origin.CopyFrom(_origin_to_wire(origin))
    if piece.ending is not None:
        chunk.finish_reason = _FINISH_REASONS[piece.ending.finish_reason]
        chunk.statistics.CopyFrom(statistics_to_wire(piece.ending.statistics))
        chunk.warnings.extend(piece.ending.warnings)
    return chunk


def _origin_to_wire(origin: Origin) -> pb.Origin:
    return pb.Origin(
        mode=mode_to_wire(origin.mode.value),
        seed=origin.seed,
        weight_fingerprint=origin.weight_fingerprint,
        max_new_tokens=origin.max_new_tokens,
    )


def response_to_wire(header: Header, choices: Sequence[Sequence[Piece]]) -> pb.GenerateResponse:
    """Joins the pieces of each choice; what several choices warn of is said once."""
    warnings = [warning for pieces in choices for warning in _ending(pieces).warnings]
    return pb.GenerateResponse(
        request_id=header.request_id,
        choices=[_choice_to_wire(index, pieces) for index, pieces in enumerate(choices)],
        prompt_tokens=header.prompt_tokens,
        warnings=dict.fromkeys(warnings),
    )


def _choice_to_wire(index: int, pieces: Sequence[Piece]) -> pb.Choice:
    ending = _ending(pieces)
    return pb.Choice(
        index=index,
        text="".join(piece.text for piece in pieces),
        tokens=[token for piece in pieces for token in _tokens_to_wire(piece.tokens)],
        finish_reason=_FINISH_REASONS[ending.finish_reason],
        statistics=statistics_to_wire(ending.statistics),
        rounds=[played for piece in pieces for played in _rounds_to_wire(piece.rounds)],
    )


def _ending(pieces: Sequence[Piece]) -> Ending:
    ending = pieces[-1].ending
    assert ending is not None
    return ending


def _tokens_to_wire(tokens: Sequence[ResponseToken]) -> list[pb.Token]:
    return [
        pb.Token(
            id=token.decided.token,
            verdict=_VERDICTS[token.decided.verdict],
            choice=token.decided.choice,
            entropy=token.decided.entropy,
            text=token.text,
            choice_text=token.choice_text,
            logprobs=None if token.logprobs is None else _logprobs_to_wire(token.logprobs),
        )
        for token in tokens
    ]


def _rounds_to_wire(rounds: Sequence[Round]) -> list[pb.Round]:
    return [pb.Round(**asdict(played)) for played in rounds]


def _logprobs_to_wire(logprobs: TokenLogprobs) -> pb.TokenLogprobs:
    top = [pb.RankedToken(id=ranked.id, text=ranked.text, logprob=ranked.logprob) for ranked in logprobs.top]
    return pb.TokenLogprobs(token=logprobs.token, choice=logprobs.choice, top=top)


def statistics_to_wire(statistics: Statistics) -> pb.Statistics:
    return pb.Statistics(**statistics_fields(statistics))


def statistics_fields(statistics: Statistics) -> dict[str, Any]:
    """Every field of the message, by its name."""
    rejections = statistics.rejections
    return dict(
        rounds=statistics.rounds,
        drafted=statistics.drafted,
        emitted=statistics.emitted,
        accepted=statistics.accepted,
        rescued=statistics.rescued,
        rejected_by_gate=rejections[RejectionReason.GATE],
        rejected_by_window=rejections[RejectionReason.WINDOW],
        rejected_by_tail=rejections[RejectionReason.TAIL],
        rejected_by_guard=rejections[RejectionReason.GUARD],
        rejected_by_exact=rejections[RejectionReason.EXACT],
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
        draft_rounds=statistics.draft_rounds,
        carried=statistics.carried,
        proposals_requested=statistics.proposals_requested,
        proposals_late=statistics.proposals_late,
        proposals_invalid=statistics.proposals_invalid,
        proposals_low_confidence=statistics.proposals_low_confidence,
        drafted_ahead=statistics.drafted_ahead,
        dropped_ahead=statistics.dropped_ahead,
    )
