"""Check the received part of a response that a client wants to resume."""

from collections.abc import Iterator

from fly.errors import FieldViolation
from fly.messages import ModelInfo
from fly.request import GenerateRequest, ReceivedChoice
from router.config import LimitsConfig


def check_resumption(
    request: GenerateRequest, prompt_length: int, target: ModelInfo, limits: LimitsConfig
) -> Iterator[FieldViolation]:
    """Yield a violation for every choice that is not one of the request's, or that cannot continue."""
    seen = set[int]()
    for place, choice in enumerate(request.resume.choices if request.resume else ()):
        field = f"resume.choices[{place}]"
        if choice.index >= request.n:
            yield FieldViolation(f"{field}.index", f"is {choice.index}, must be 0 to {request.n - 1}")
        if choice.index in seen:
            yield FieldViolation(f"{field}.index", f"is {choice.index} again, each index may occur once")
        seen.add(choice.index)
        yield from _check_tokens(f"{field}.token_ids", choice, prompt_length, target, request, limits)


def _check_tokens(
    field: str,
    choice: ReceivedChoice,
    prompt_length: int,
    target: ModelInfo,
    request: GenerateRequest,
    limits: LimitsConfig,
) -> Iterator[FieldViolation]:
    ids = choice.token_ids
    if unknown := next((token for token in ids if token >= target.vocab_size), None):
        yield FieldViolation(field, f"holds {unknown}, must be 0 to {target.vocab_size - 1}")
    if choice.is_finished:
        return
    most = (request.max_new_tokens or limits.default_new_tokens) - 1
    if target.context_length:
        most = min(most, target.context_length - prompt_length - 1)
    if len(ids) > most:
        yield FieldViolation(field, f"has {len(ids)} tokens, at most {most} leave room for another")
