"""Log-probabilities of a prompt: the target verifies the prompt's own tokens as drafts, part by part."""

import asyncio
from collections.abc import Sequence
from functools import partial

from flyserve.core.messages import Open
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import TokenSequence
from flyserve.core.types import PositionLogprobs, PromptToken, RankedToken
from router.generation.context import RouterContext
from router.generation.target_session import TargetSession, WaitForPlace
from router.requests.request import Deadline, PreparedRequest
from router.text.output import Detokenizer
from router.text.tokenizer import Tokenizer

_STEP_TOKENS = 255
"""Tokens scored in one step: their rows and one more are a chunk of a prefill by default, so other requests
share the forward."""
_MAX_INLINE_LOGPROBS = 1024
"""Log-probabilities above which the texts of their tokens are made off the event loop."""
_LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON lacks, as in vLLM."""


async def score_prompt(
    context: RouterContext, request: PreparedRequest, deadline: Deadline, wait_for_place: WaitForPlace
) -> tuple[PromptToken, ...]:
    """Return the tokens of the prompt with their log-probabilities under the target.

    Every position is computed: a cached prefix has no logits. Arguments and errors are those of `generate`.
    """
    positions = await _positions(context, request, deadline, wait_for_place)
    num_logprobs = len(positions) * (1 + (request.prompt_logprobs or 0))
    if num_logprobs > _MAX_INLINE_LOGPROBS:
        return await asyncio.to_thread(_prompt_tokens, context.tokenizer, request.prompt_ids, positions)
    return _prompt_tokens(context.tokenizer, request.prompt_ids, positions)


async def _positions(
    context: RouterContext, request: PreparedRequest, deadline: Deadline, wait_for_place: WaitForPlace
) -> list[PositionLogprobs]:
    """Return the log-probabilities of each token after the first, as drafts."""
    ids, positions = request.prompt_ids, list[PositionLogprobs]()
    sequence = TokenSequence(ids[:1])
    if len(ids) == 1:
        return positions
    make_open = partial(_open_message, request, deadline)
    target = TargetSession(context, request, make_open, wait_for_place, measures_pace=False)
    async with target:
        while len(sequence) < len(ids):
            deadline.remaining_ms()
            part = ids[len(sequence) : len(sequence) + _STEP_TOKENS]
            scored = await target.verify(sequence, part, len(sequence))
            found = scored.logprobs[: len(part)]  # fewer before a token after which the model fails
            positions.extend(found)
            sequence.extend(part[: len(found)])
    return positions


def _open_message(request: PreparedRequest, deadline: Deadline) -> Open:
    """Return the first message of a stream that only scores: greedy, without processing of the logits."""
    return Open(
        request_id=request.request_id,
        prompt_length=len(request.prompt_ids),
        sampling=SamplingParams(),
        priority=request.priority,
        deadline_ms=deadline.remaining_ms(),
        cache_salt=request.cache_salt,
        num_logprobs=request.prompt_logprobs,
        max_new_tokens=1,
    )


def _prompt_tokens(
    tokenizer: Tokenizer, ids: Sequence[int], positions: list[PositionLogprobs]
) -> tuple[PromptToken, ...]:
    """Return the tokens with their texts; the first one has no log-probability. Clear `positions`."""
    texts = _texts(tokenizer, ids)
    listed = sorted({token for position in positions for token, _ in position.top})
    names = dict(zip(listed, tokenizer.pieces(listed), strict=True))

    def scored(token: int, text: str, position: PositionLogprobs) -> PromptToken:
        assert position.draft is not None
        top = (RankedToken(each, names[each], max(value, _LEAST_LOGPROB)) for each, value in position.top)
        return PromptToken(token, text, max(position.draft, _LEAST_LOGPROB), tuple(top))

    tokens = (PromptToken(ids[0], texts[0]), *map(scored, ids[1:], texts[1:], positions))
    positions.clear()
    return tokens


def _texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds; joined, they are the text of the prompt."""
    detokenizer = Detokenizer(tokenizer.backend)
    texts = [detokenizer.push(token) for token in ids]
    texts[-1] += detokenizer.flush()
    return texts
