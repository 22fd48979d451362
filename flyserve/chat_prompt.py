"""A user's prompt as a chat, if the model has a chat template."""

from flyserve.client import Client
from flyserve.core.errors import NO_CHAT_TEMPLATE, ConfigError, InvalidRequest
from flyserve.core.request import ChatMessage


def chat_tokens(
    client: Client, prompt: str, place: str, timeout_s: float | None = None
) -> tuple[int, ...] | None:
    """Return the tokens of a prompt as a chat; None if the model has no chat template.

    Raises:
        ConfigError: The template rejects the prompt, or it is too long; names its `place`.
    """
    try:
        return tuple(token.id for token in client.tokenize([ChatMessage("user", prompt)], timeout_s))
    except InvalidRequest as error:
        if any(each.reason == NO_CHAT_TEMPLATE for each in error.violations):
            return None
        raise ConfigError(f"{place}: {error}") from None
