"""A user's prompt as the model wants it: a chat, if the model has a chat template."""

import math
from collections.abc import Sequence

from flyserve.client import Client
from flyserve.core.errors import NO_CHAT_TEMPLATE, ConfigError, InvalidRequest
from flyserve.core.request import ChatMessage


def prompt_tokens(client: Client, prompt: str, place: str, timeout_s: float | None = None) -> tuple[int, ...]:
    """Return the tokens of a prompt: as a chat if the model has a chat template, else as a text.

    Raises:
        ConfigError: The template rejects the prompt, or it is too long; names its `place`.
    """
    try:
        return _ids(client, [ChatMessage("user", prompt)], timeout_s)
    except InvalidRequest as error:
        if all(each.reason != NO_CHAT_TEMPLATE for each in error.violations):
            raise ConfigError(f"{place}: {error}") from None
    try:
        return _ids(client, prompt, timeout_s)
    except InvalidRequest as error:
        raise ConfigError(f"{place}: {error}") from None


def check_room(place: str, ids: Sequence[int], context_length: int) -> None:
    """Raise ConfigError if a context, 0 without a limit, has no room for an answer after a prompt."""
    if len(ids) >= (context_length or math.inf):
        found = f"has {len(ids)} tokens, at most {context_length - 1} leave room for an answer"
        raise ConfigError(f"{place}: {found}")


def _ids(client: Client, prompt: str | Sequence[ChatMessage], timeout_s: float | None) -> tuple[int, ...]:
    return tuple(token.id for token in client.tokenize(prompt, timeout_s))
