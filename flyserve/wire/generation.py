"""Messages of the public service. Tokens are converted by hand, because they are hot."""

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from flyserve.core.errors import InvalidRequest, refuse
from flyserve.core.limits import check_sampling
from flyserve.core.request import POLICY_REMEDY, ChatMessage, GenerateRequest
from flyserve.core.response import Choice, Chunk, DeploymentInfo, Response, TextToken
from flyserve.core.types import Logprobs, PromptToken, RankedToken, Token, Verdict
from flyserve.v1 import generation_pb2 as pb
from flyserve.wire.codec import decode, encode, set_field
from flyserve.wire.enums import members, numbers

_NUMBERS = numbers(Verdict, pb.Verdict.DESCRIPTOR)
_MOST_TOKENS = 2**32
"""Size of a vocabulary that has every token id which the wire can carry."""
_POLICY = 1
"""Number of the field `policy` of `DraftLength`, which is removed."""
_VERDICTS = members(Verdict, pb.Verdict.DESCRIPTOR)


def request_to_wire(request: GenerateRequest) -> pb.GenerateRequest:
    """Raise InvalidRequest for a value that the wire cannot carry, or that no server accepts."""
    wire = encode(request, pb.GenerateRequest(), without=("prompt",))
    refuse(check_sampling(request.sampling, _MOST_TOKENS))
    if isinstance(request.prompt, str):
        set_field(wire, "prompt", request.prompt)
    else:
        set_field(wire.prompt_token_ids, "ids", request.prompt, "prompt_token_ids.")
        wire.prompt_token_ids.SetInParent()
    return wire


def request_from_wire(wire: pb.GenerateRequest) -> GenerateRequest:
    """Raise InvalidRequest for a removed field, or a number of an enumeration that this version lacks."""
    _refuse_policy(wire.speculation.draft_length)
    by_ids = wire.WhichOneof("input") == "prompt_token_ids"
    return decode(
        GenerateRequest, wire, prompt=tuple(wire.prompt_token_ids.ids[:]) if by_ids else wire.prompt
    )


def _refuse_policy(wire: pb.DraftLength) -> None:
    """Raise InvalidRequest if a client of an earlier version sets the policy of the draft length."""
    unknown = UnknownFieldSet(wire)
    if any(unknown[index].field_number == _POLICY for index in range(len(unknown))):
        raise InvalidRequest.of("speculation.draft_length.policy", f"is not supported: {POLICY_REMEDY}")


def chunk_to_wire(chunk: Chunk) -> pb.GenerateChunk:
    wire = pb.GenerateChunk(
        text=chunk.text,
        tokens=_tokens_to_wire(chunk.tokens),
        choice_index=chunk.choice_index,
        prompt=_prompt_to_wire(chunk.prompt),
        kernels=chunk.kernels,
    )
    for each in chunk.rounds:
        if each.evidence is not None:
            encode(each, wire.rounds.add())
            continue
        wire.rounds.add(
            index=each.index,
            drafted=each.drafted,
            accepted=each.accepted,
            start_s=each.start_s,
            draft_s=each.draft_s,
            verify_s=each.verify_s,
            wire_s=each.wire_s,
            end_s=each.end_s,
        )
    if chunk.finish_reason is None and not chunk.request_id:
        return wire
    return encode(chunk, wire, without=("text", "tokens", "choice_index", "rounds", "prompt", "kernels"))


def chunk_from_wire(wire: pb.GenerateChunk) -> Chunk:
    prompt = _prompt_from_wire(wire.prompt)
    return decode(Chunk, wire, tokens=_tokens_from_wire(wire.tokens), prompt=prompt)


def response_to_wire(response: Response) -> pb.GenerateResponse:
    wire = pb.GenerateResponse(prompt=_prompt_to_wire(response.prompt))
    encode(response, wire, without=("choices", "prompt"))
    for choice in response.choices:
        encode(choice, wire.choices.add(tokens=_tokens_to_wire(choice.tokens)), without=("tokens",))
    return wire


def response_from_wire(wire: pb.GenerateResponse) -> Response:
    choices = (decode(Choice, each, tokens=_tokens_from_wire(each.tokens)) for each in wire.choices)
    return decode(Response, wire, choices=tuple(choices), prompt=_prompt_from_wire(wire.prompt))


def deployment_to_wire(info: DeploymentInfo) -> pb.DeploymentInfo:
    return encode(info, pb.DeploymentInfo())


def deployment_from_wire(wire: pb.DeploymentInfo) -> DeploymentInfo:
    return decode(DeploymentInfo, wire)


def tokenize_to_wire(text: str | Sequence[ChatMessage]) -> pb.TokenizeRequest:
    """Raise InvalidRequest for what is neither a text nor a conversation."""
    wire = pb.TokenizeRequest()
    if isinstance(text, str):
        set_field(wire, "text", text)
        return wire
    for index, message in enumerate(text):
        encode(message, wire.messages.add(), f"messages[{index}].")
    return wire


def text_tokens_to_wire(tokens: Iterable[TextToken]) -> pb.TokenizeResponse:
    return pb.TokenizeResponse(tokens=[pb.TextToken(id=token.id, text=token.text) for token in tokens])


def text_tokens_from_wire(wire: pb.TokenizeResponse) -> tuple[TextToken, ...]:
    return tuple(TextToken(token.id, token.text) for token in wire.tokens)


def _tokens_to_wire(tokens: Iterable[Token]) -> list[pb.Token]:
    return [
        pb.Token(
            id=token.id,
            verdict=_NUMBERS[token.verdict],  # type: ignore[arg-type]
            choice=token.choice,
            entropy=token.entropy,
            text=token.text,
            choice_text=token.choice_text,
            logprobs=None if token.logprobs is None else _logprobs_to_wire(token.logprobs),
        )
        for token in tokens
    ]


def _tokens_from_wire(wire: Any) -> tuple[Token, ...]:
    return tuple(
        Token(
            id=token.id,
            verdict=_VERDICTS.get(token.verdict, Verdict.PLAIN),
            choice=token.choice,
            entropy=token.entropy if token.HasField("entropy") else None,
            text=token.text,
            choice_text=token.choice_text,
            logprobs=_logprobs_from_wire(token.logprobs) if token.HasField("logprobs") else None,
        )
        for token in wire
    )


def _logprobs_to_wire(logprobs: Logprobs) -> pb.Logprobs:
    return pb.Logprobs(token=logprobs.token, choice=logprobs.choice, top=_ranked_to_wire(logprobs.top))


def _logprobs_from_wire(wire: pb.Logprobs) -> Logprobs:
    return Logprobs(wire.token, wire.choice, _ranked_from_wire(wire.top))


def _prompt_to_wire(tokens: Iterable[PromptToken]) -> list[pb.PromptToken]:
    return [
        pb.PromptToken(id=token.id, text=token.text, logprob=token.logprob, top=_ranked_to_wire(token.top))
        for token in tokens
    ]


def _prompt_from_wire(wire: Iterable[pb.PromptToken]) -> tuple[PromptToken, ...]:
    return tuple(
        PromptToken(
            each.id,
            each.text,
            each.logprob if each.HasField("logprob") else None,
            _ranked_from_wire(each.top),
        )
        for each in wire
    )


def _ranked_to_wire(tokens: Iterable[RankedToken]) -> list[pb.RankedToken]:
    return [pb.RankedToken(id=each.id, text=each.text, logprob=each.logprob) for each in tokens]


def _ranked_from_wire(wire: Iterable[pb.RankedToken]) -> tuple[RankedToken, ...]:
    return tuple(RankedToken(each.id, each.text, each.logprob) for each in wire)
