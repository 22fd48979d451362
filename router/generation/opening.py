"""The beginning of a response: first message of its streams, tokens, text, and the size of its steps."""

import asyncio

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Open
from flyserve.core.spans import Span, StrictSpans
from flyserve.core.speculation import Speculation
from flyserve.core.types import Mode, ResponseLimits
from router.config import RouterConfig
from router.requests.request import Deadline, PreparedRequest
from router.text.output import ResponseText
from router.text.tokenizer import Tokenizer

_MAX_INLINE_RECEIVED = 256
"""Number of tokens of a resumed response above which they are read off the event loop."""
_WHOLE_INTERVALS = 10
"""Stream intervals in a step without drafts of a response that the client gets as a whole."""
_OPENING_CONTEXT = 16
"""Last tokens of the prompt in which a chat template may open a part of the response, such as `<think>`."""
_TEXT_CONTEXT = 5
"""Last tokens of the prompt that are used as context to decode the first token."""


def open_message(request: PreparedRequest, deadline: Deadline) -> Open:
    """Return the first message of a stream; raises DeadlineExceeded if the deadline has passed."""
    return Open(
        request_id=request.request_id,
        prompt_length=len(request.prompt_ids),
        sampling=request.sampling,
        priority=request.priority,
        deadline_ms=deadline.remaining_ms(),
        cache_salt=request.cache_salt,
        entropy=request.plan.rule.entropy,
        without_sub_drafter=not request.plan.sub_drafter,
        num_logprobs=request.logprobs,
        max_new_tokens=0 if request.fills_context else request.max_new_tokens,
        without_entropies=not request.needs_entropies,
        with_gaps=request.needs_gaps,
        grammar=request.grammar.form if request.grammar else "",
        standalone=request.plan.mode is Mode.DRAFT,
        without_copies=request.plan.rule.reproducible_drafts,
    )


def extension_interval_s(request: PreparedRequest, config: RouterConfig) -> float:
    """Return the longest time of the forwards of a step without drafts.

    It is longer where nobody waits for a part of the response, and the target stops where the response does.
    """
    is_free = not (request.streams or request.stop)
    return config.stream_interval_s * (_WHOLE_INTERVALS if is_free else 1)


async def begin(request: PreparedRequest, tokenizer: Tokenizer) -> tuple[Speculation, ResponseText]:
    """Return the tokens and the text of a new response, or of one that continues after received tokens."""
    prompt_tail, ending_ids = request.prompt_ids[-_TEXT_CONTEXT:], request.sampling.ending_ids
    text = ResponseText(
        tokenizer.backend,
        prompt_tail,
        request.stop,
        ending_ids,
        request.sampling.min_tokens,
        request.message_format,
    )
    received, is_long = request.received_ids, len(request.received_ids) > _MAX_INLINE_RECEIVED
    if not (await asyncio.to_thread(text.resume, received) if is_long else text.resume(received)):
        raise InvalidRequest.of("resume", "holds a stop string: the response has ended")
    limits = ResponseLimits(request.max_new_tokens, ending_ids)
    return Speculation(request.prompt, request.plan.rule, limits, text.find_stop, received), text


async def begin_spans(request: PreparedRequest, tokenizer: Tokenizer) -> StrictSpans:
    """Return the parts of a response that are decoded exactly, after the tokens that were received."""
    spans = request.plan.exact_in if request.plan.mode is Mode.FLY else frozenset[Span]()
    found = StrictSpans(spans, tokenizer.pieces, len(request.prompt_ids))
    found.read(request.prompt_ids[-_OPENING_CONTEXT:])
    if len(request.received_ids) > _MAX_INLINE_RECEIVED:
        await asyncio.to_thread(found.resume, request.received_ids)
    else:
        found.resume(request.received_ids)
    return found
