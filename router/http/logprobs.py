"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Sequence

from router.generation.response import ResponseToken
from router.http.objects import ChatLogprob, ChatLogprobs, CompletionLogprobs, RankedLogprob


def completion_logprobs(tokens: Sequence[ResponseToken], offset: int) -> CompletionLogprobs | None:
    """The lists of a completion; None where nothing was asked for.

    Args:
        tokens: One after the other.
        offset: Characters of the choice before the first of them.
    """
    told = [(token.text, token.logprobs) for token in tokens if token.logprobs is not None]
    if not told:
        return None
    offsets = []
    for text, _ in told:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        tokens=[text for text, _ in told],
        token_logprobs=[logprobs.token for _, logprobs in told],
        top_logprobs=[{ranked.text: ranked.logprob for ranked in logprobs.top} for _, logprobs in told],
        text_offset=offsets,
    )


def chat_logprobs(tokens: Sequence[ResponseToken]) -> ChatLogprobs | None:
    """The entries of a chat choice; None where nothing was asked for."""
    content = [
        ChatLogprob(
            token=token.text,
            logprob=token.logprobs.token,
            bytes=_bytes(token.text),
            top_logprobs=[
                RankedLogprob(token=ranked.text, logprob=ranked.logprob, bytes=_bytes(ranked.text))
                for ranked in token.logprobs.top
            ],
        )
        for token in tokens
        if token.logprobs is not None
    ]
    return ChatLogprobs(content=content) if content else None


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8"))
