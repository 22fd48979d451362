"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Sequence

from fly.types import Token
from router.http.objects import ChatLogprob, ChatLogprobs, CompletionLogprobs, RankedLogprob


def completion_logprobs(tokens: Sequence[Token], offset: int) -> CompletionLogprobs | None:
    """Return the lists of a completion; None if no log-probabilities were requested.

    Args:
        tokens: Consecutive tokens.
        offset: Number of characters of the choice before the first of them.
    """
    found = [(token.text, token.logprobs) for token in tokens if token.logprobs is not None]
    if not found:
        return None
    offsets = []
    for text, _ in found:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        tokens=[text for text, _ in found],
        token_logprobs=[logprobs.token for _, logprobs in found],
        top_logprobs=[{ranked.text: ranked.logprob for ranked in logprobs.top} for _, logprobs in found],
        text_offset=offsets,
    )


def chat_logprobs(tokens: Sequence[Token]) -> ChatLogprobs | None:
    """Return the entries of a chat choice; None if no log-probabilities were requested."""
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
