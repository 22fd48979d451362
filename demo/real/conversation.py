"""A short conversation with a served model: one turn over HTTP, one over gRPC."""

import json
from collections.abc import Iterator, Sequence
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from flyserve.client import Client
from flyserve.core.errors import NotReady, describe
from flyserve.core.request import ChatMessage

FIRST = "What is the capital of France?"
SECOND = "Write one sentence about it."
_MODEL = "smollm2"
_MAX_NEW_TOKENS = 64
_TIMEOUT_S = 120.0


def converse(address: str, http_url: str) -> Iterator[tuple[str, str]]:
    """Yield who speaks and the text; the second question follows the first answer.

    Raises:
        FlyServeError: The deployment rejects a question or does not answer.
    """
    yield "user", FIRST
    first = ask_over_http(http_url, [ChatMessage("user", FIRST)])
    yield "assistant, over HTTP", first
    yield "user", SECOND
    messages = [ChatMessage("user", FIRST), ChatMessage("assistant", first), ChatMessage("user", SECOND)]
    with Client(address) as client:
        prompt = [token.id for token in client.tokenize(messages)]
        yield "assistant, over gRPC", client.generate(prompt, _MAX_NEW_TOKENS, timeout_s=_TIMEOUT_S).text


def ask_over_http(url: str, messages: Sequence[ChatMessage]) -> str:
    """Return the answer of the OpenAI API to a conversation.

    Raises:
        NotReady: The API does not answer, or answers with an error.
    """
    listed = [{"role": message.role, "content": message.content} for message in messages]
    asked = {"model": _MODEL, "messages": listed, "max_tokens": _MAX_NEW_TOKENS, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = Request(f"{url}/v1/chat/completions", json.dumps(asked).encode(), headers)
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as response:
            text: str = json.load(response)["choices"][0]["message"]["content"]
    except HTTPError as error:
        raise NotReady(f"{url} rejects the question: {error.read().decode()}") from None
    except OSError as error:
        raise NotReady(f"{url} does not answer: {describe(error)}") from None
    return text
