"""Check a request against all limits and complete it; its first faults are reported together."""

import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from flyserve.core.errors import MOST_VIOLATIONS, FieldViolation, InvalidRequest, refuse
from flyserve.core.limits import PUBLIC_LOGIT_BIAS, PUBLIC_PENALTY, SamplingLimits, check_sampling
from flyserve.core.messages import ModelInfo
from flyserve.core.request import GenerateRequest, ReceivedChoice, SamplingParams
from flyserve.core.sequence import TokenSequence
from flyserve.core.types import Coupling, Mode
from router.config import LimitsConfig, RouterConfig
from router.cost import returned_values
from router.policies.request_key import request_key
from router.requests.grammars import CompiledGrammar
from router.requests.planning import SpeculationPlan, check_speculation, plan_speculation
from router.requests.prompt_length import check_beginning, too_long, too_many_characters
from router.requests.request import PreparedRequest, draw_seed
from router.requests.warnings import request_warnings
from router.text.tokenizer import Tokenizer

_SHORT = 16_384
"""Characters or token ids of a prompt that is also checked if the request is refused anyway."""


def prepare(
    request: GenerateRequest,
    tokenizer: Tokenizer,
    target: ModelInfo,
    config: RouterConfig,
    grammar: CompiledGrammar | None = None,
) -> PreparedRequest:
    """Return a request that can be served by `target`; in mode draft it is the drafters' model.

    `grammar` is that of the request, compiled. Raise InvalidRequest with a violation for every field that
    breaks a limit, as many as an error reports.
    """
    limits, encode = config.limits, tokenizer.encode
    first = _faults(request, tokenizer, config, target)
    violations = list(islice(first, MOST_VIOLATIONS))
    prompt_ids: tuple[int, ...] = ()
    if isinstance(request.prompt, str) and not violations:
        violations += check_beginning("prompt", (request.prompt,), encode, target.context_length)
    if not violations or (_is_short(request.prompt) and not _has_fault(request.prompt_field, violations)):
        prompt_ids = encode(request.prompt) if isinstance(request.prompt, str) else request.prompt
        further = chain(
            _check_prompt(request, prompt_ids, target),
            check_returned_values([(request, len(prompt_ids))], limits),
            check_resumption(request, len(prompt_ids), target, limits),
        )
        violations += islice(further, MOST_VIOLATIONS)
    refuse(violations)
    prepared = _complete(request, prompt_ids, tokenizer.eos_ids, target, config)
    if grammar is not None:
        prepared = replace(prepared, grammar=grammar, warnings=(*prepared.warnings, *grammar.warnings))
    if target.plain_only and prepared.plan.drafts:
        found = f"is {prepared.plan.mode.value}, must be plain for {target.model_id}"
        raise InvalidRequest.of("speculation.mode", f"{found}: {target.plain_only}")
    if target.plain_only and request.prompt_logprobs is not None:
        found = f"is {request.prompt_logprobs}, must be absent for {target.model_id}"
        raise InvalidRequest.of("prompt_logprobs", f"{found}: {target.plain_only}")
    if not request.prediction:
        return prepared
    if not prepared.plan.drafts:
        raise InvalidRequest.of("prediction", f"needs drafts, but {_reason_without_drafts(prepared.plan)}")
    return replace(prepared, prediction=encode(request.prediction, add_special_tokens=False))


def check_alone(request: GenerateRequest, tokenizer: Tokenizer, config: RouterConfig) -> None:
    """Refuse, as `prepare` does, a request that no target could serve."""
    refuse(_faults(request, tokenizer, config, None))


def _faults(
    request: GenerateRequest, tokenizer: Tokenizer, config: RouterConfig, target: ModelInfo | None
) -> Iterator[FieldViolation]:
    """Yield the faults of all fields but the tokens of the prompt; without a target, those that any has."""
    limits, speculation = config.limits, config.speculation
    yield from _check_texts(request, limits)
    yield from _check_length(request, limits)
    yield from _check_grammar(request, tokenizer.eos_ids)
    yield from _check_draft_mode(request)
    if target is not None:
        allowed = SamplingLimits(least_top_p=0.0, penalty=PUBLIC_PENALTY, logit_bias=PUBLIC_LOGIT_BIAS)
        yield from check_sampling(request.sampling, target.vocab_size, allowed)
    yield from check_speculation(
        request.speculation,
        speculation.plan,
        limits.draft_length,
        limits.max_new_tokens,
        speculation.rules,
    )


def _is_short(prompt: str | Sequence[int]) -> bool:
    return len(prompt) <= _SHORT


def _has_fault(field: str, violations: Sequence[FieldViolation]) -> bool:
    return any(violation.field == field for violation in violations)


def _reason_without_drafts(plan: SpeculationPlan) -> str:
    if plan.mode in (Mode.PLAIN, Mode.DRAFT):
        return f"speculation.mode is {plan.mode.value}, must be exact or fly"
    return "speculation.draft_length.max is 0, must be at least 1"


def _check_draft_mode(request: GenerateRequest) -> Iterator[FieldViolation]:
    """Refuse what a drafter's own model does not return."""
    if request.speculation.mode is Mode.DRAFT:
        for field in ("logprobs", "prompt_logprobs"):
            if (found := getattr(request, field)) is not None:
                allowed = "must be absent: the drafter's own model returns no log-probabilities"
                yield FieldViolation(field, f"is {found}, {allowed}", "unsupported_parameter")


def _check_texts(request: GenerateRequest, limits: LimitsConfig) -> Iterator[FieldViolation]:
    if not request.prompt:
        yield FieldViolation(request.prompt_field, "is empty, must have at least one token")
    if isinstance(request.prompt, str) and len(request.prompt) > limits.prompt_characters:
        found = f"has {len(request.prompt)} characters"
        yield too_many_characters("prompt", found, limits.prompt_characters)
    if len(request.prediction) > limits.prompt_characters:
        found = f"has {len(request.prediction)} characters, at most {limits.prompt_characters}"
        yield FieldViolation("prediction", f"{found} (router.limits.prompt_characters)")
    for field, name in (("request_id", request.request_id), ("cache_salt", request.cache_salt)):
        if len(name) > limits.name_characters:
            yield FieldViolation(field, f"has {len(name)} characters, at most {limits.name_characters}")
    for index, stop in enumerate(request.stop):
        if not 1 <= len(stop) <= limits.stop_string_characters:
            allowed = f"must be 1 to {limits.stop_string_characters}"
            yield FieldViolation(f"stop[{index}]", f"has {len(stop)} characters, {allowed}")


def _check_length(request: GenerateRequest, limits: LimitsConfig) -> Iterator[FieldViolation]:
    asked, limit = request.max_new_tokens, limits.max_new_tokens
    if asked is not None and not 0 <= asked <= limit:
        allowed = f"must be 0 to {limit} (router.limits.max_new_tokens)"
        yield FieldViolation("max_new_tokens", f"is {asked}, {allowed}")
    most = _most_new_tokens(request, limits)
    if (least := request.sampling.min_tokens) > max(most, 0):
        allowed = f"must be at most {most}, the number of new tokens"
        yield FieldViolation("sampling.min_tokens", f"is {least}, {allowed}")
    if abs(request.priority) > limits.priority:
        allowed = f"must be {-limits.priority} to {limits.priority} (router.limits.priority)"
        yield FieldViolation("priority", f"is {request.priority}, {allowed}")
    if not 1 <= request.n <= limits.choices:
        yield FieldViolation("n", f"is {request.n}, must be 1 to {limits.choices}")
    for field in ("logprobs", "prompt_logprobs"):
        if (found := getattr(request, field)) is not None and found > limits.logprobs:
            yield FieldViolation(field, f"is {found}, must be 0 to {limits.logprobs}")


def _check_grammar(request: GenerateRequest, eos_ids: Sequence[int]) -> Iterator[FieldViolation]:
    """Yield a violation for every field that a grammar excludes: it decides itself where a response ends."""
    if request.grammar is None:
        return
    sampling = request.sampling
    if sampling.ignore_eos:
        yield FieldViolation("sampling.ignore_eos", "is true, must be false with a grammar")
    elif not (eos_ids or sampling.stop_token_ids):
        needed = "the model has no end-of-sequence token: set stop_token_ids"
        yield FieldViolation("grammar", f"needs a token that ends the response, and {needed}")


def _check_prompt(
    request: GenerateRequest, ids: Sequence[int], target: ModelInfo
) -> Iterator[FieldViolation]:
    field, room = request.prompt_field, int(request.max_new_tokens != 0)
    if not ids:
        yield FieldViolation(field, "is empty, must have at least one token")
    if target.context_length and len(ids) + room > target.context_length:
        yield too_long(field, f"{len(ids)} tokens", target.context_length, room)
    if max(ids, default=0) >= target.vocab_size:
        index, token = next((i, token) for i, token in enumerate(ids) if token >= target.vocab_size)
        allowed = f"must be 0 to {target.vocab_size - 1}"
        yield FieldViolation(f"{field}.ids[{index}]", f"is {token}, {allowed}")


def check_returned_values(
    requests: Sequence[tuple[GenerateRequest, int]], limits: LimitsConfig
) -> Iterator[FieldViolation]:
    """Limit the log-probabilities of a response: the router holds all of them before it sends a whole one.

    Each request of the response comes with the number of its prompt's tokens, 0 if it is not known yet.
    """
    number = sum(
        returned_values(request, num_tokens, _most_new_tokens(request, limits))
        for request, num_tokens in requests
    )
    if number > limits.returned_values:
        field = _field_with_most_values(*requests[0], limits)
        allowed = f"at most {limits.returned_values} are allowed (router.limits.returned_values)"
        remedy = "lower it, n, the number of new tokens or that of prompts"
        yield FieldViolation(field, f"makes a response of up to {number} values, {allowed}: {remedy}")


def _field_with_most_values(request: GenerateRequest, num_tokens: int, limits: LimitsConfig) -> str:
    of_prompt = returned_values(request, num_tokens, 0)
    is_prompt = of_prompt > returned_values(request, 0, _most_new_tokens(request, limits))
    return "prompt_logprobs" if is_prompt else "evidence" if request.evidence else "logprobs"


def _most_new_tokens(request: GenerateRequest, limits: LimitsConfig) -> int:
    return limits.default_new_tokens if request.max_new_tokens is None else request.max_new_tokens


def _complete(
    request: GenerateRequest,
    prompt_ids: tuple[int, ...],
    eos_ids: Sequence[int],
    target: ModelInfo,
    config: RouterConfig,
) -> PreparedRequest:
    """Add defaults to what the client left open, and cut the response to the target's context."""
    asked = _most_new_tokens(request, config.limits)
    room = target.context_length - len(prompt_ids) if target.context_length else math.inf
    length, warnings = int(min(asked, room)), list[str]()
    if length < asked and request.max_new_tokens is not None and not request.fills_context:
        context = f"the {target.role.value}'s context holds {target.context_length} tokens"
        warnings.append(f"max_new_tokens was cut from {asked} to {length}: {context}")
    plan = plan_speculation(request.speculation, config.speculation.plan, config.speculation.rules)
    if request.grammar is not None:
        plan = plan.with_grammar()
    return PreparedRequest(
        request_id=request.request_id or uuid.uuid4().hex,
        prompt=_hashed(prompt_ids),
        max_new_tokens=length,
        sampling=_complete_sampling(request, eos_ids, plan.mode),
        stop=request.stop,
        plan=plan,
        priority=request.priority,
        cache_salt=request.cache_salt,
        warnings=(*warnings, *request_warnings(request, plan)),
        n=request.n,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        evidence=request.evidence,
        fills_context=request.fills_context,
        weight_fingerprint=target.weight_fingerprint,
        resumed=request.resume.choices if request.resume else (),
        key=request_key(prompt_ids, request.cache_salt),
    )


def _hashed(prompt_ids: Sequence[int]) -> TokenSequence:
    """Return the prompt with the hash that every replica checks, computed once for all choices."""
    prompt = TokenSequence(prompt_ids)
    prompt.prefix_hash(len(prompt))
    return prompt


def _complete_sampling(request: GenerateRequest, eos_ids: Sequence[int], mode: Mode) -> SamplingParams:
    """Add a seed and, unless `ignore_eos` is set, the model's end-of-sequence ids to the client's.

    A nucleus of probability 0 is the most likely token. A drafter draws alone with the shared noise: with it,
    drafts are what its own model would draw.
    """
    sampling = request.sampling
    own = () if sampling.ignore_eos else tuple(eos_ids)
    seed = draw_seed() if sampling.seed is None else sampling.seed
    stop_ids = tuple(dict.fromkeys((*sampling.stop_token_ids, *own)))
    coupling = Coupling.SHARED_NOISE if mode is Mode.DRAFT else sampling.coupling
    if sampling.top_p == 0:
        sampling = replace(sampling, top_k=1, top_p=1.0)
    return replace(sampling, stop_token_ids=stop_ids, ignore_eos=False, seed=seed, coupling=coupling)


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
    if (largest := max(ids, default=0)) >= target.vocab_size:
        yield FieldViolation(field, f"holds {largest}, must be 0 to {target.vocab_size - 1}")
    if choice.is_finished:
        return
    most = _most_new_tokens(request, limits) - 1
    if target.context_length:
        most = min(most, target.context_length - prompt_length - 1)
    if len(ids) > most:
        yield FieldViolation(field, f"has {len(ids)} tokens, at most {most} leave room for another")
