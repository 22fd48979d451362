"""Bases of both clients and their streams: requests, channels, retries, errors."""

import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, Unpack

from flyserve.connection import TlsOption, make_connection
from flyserve.core.errors import FlyServeError
from flyserve.core.grammar import Grammar
from flyserve.core.request import GenerateRequest, SamplingParams, SpeculationParams
from flyserve.core.response import Response
from flyserve.received import ReceivedStream
from flyserve.retries import RetryPolicy
from flyserve.v1.generation_pb2_grpc import GenerationStub
from flyserve.wire.channel import CHANNEL_OPTIONS
from flyserve.wire.status import from_rpc_error

Prompt = str | Sequence[int]
"""Text, or token ids."""


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`, all optional.

    Attributes:
        stop: The response ends before the first of these strings.
        n: Number of choices, decoded in parallel; 1 by default.
        logprobs: Return log-probabilities, also those of this many most likely tokens; 0 to 20.
        prediction: Text that the response is expected to resemble, such as the file to be edited: it makes
            the response faster where it is right.
        grammar: Constraint on the text of the response, such as a JSON Schema.
        prompt_logprobs: Return the tokens of the prompt with their log-probabilities, also those of this many
            most likely tokens; 0 to 20. `max_new_tokens` may then be 0.
        cache_salt: The servers share cached prefixes and memories only between requests with the same salt.
        priority: Higher values run first when work queues; 0 by default.
        request_id: For logs, the server's too; drawn by default.
    """

    stop: Sequence[str]
    n: int | None
    logprobs: int | None
    prediction: str
    grammar: Grammar | None
    prompt_logprobs: int | None
    cache_salt: str
    priority: int
    request_id: str


def make_request(
    prompt: Prompt,
    max_new_tokens: int | None = None,
    sampling: SamplingParams | None = None,
    speculation: SpeculationParams | None = None,
    **options: Unpack[RequestOptions],
) -> GenerateRequest:
    """Return the request; the wire and the server check it."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given["request_id"] = given.get("request_id") or uuid.uuid4().hex
    # A text in place of a list is left as it is: the wire rejects it.
    if isinstance(given.get("stop"), list):
        given["stop"] = tuple(given["stop"])
    return GenerateRequest(
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        max_new_tokens=max_new_tokens,
        sampling=sampling or SamplingParams(),
        speculation=speculation or SpeculationParams(),
        **given,
    )


_OPTIONS: Sequence[tuple[str, Any]] = (
    *CHANNEL_OPTIONS,
    # The client retries only calls that are safe; gRPC's own retries would multiply them.
    ("grpc.enable_retries", 0),
    # Sixteen choices with twenty log-probabilities a token exceed gRPC's 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
)


class StreamCore:
    """A response that arrives over one call, or over several if a call breaks."""

    def __init__(self, client: "ClientCore[Any]", received: ReceivedStream, policy: RetryPolicy) -> None:
        self._client = client
        self._received = received
        self._policy = policy
        self._call: Any = None
        self._closed = threading.Event()

    @property
    def response(self) -> Response:
        """Everything received so far."""
        return self._received.response

    def _cancel(self) -> None:
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    def _open(self) -> Any:
        request = self._received.request
        options = self._client.call_options(self._policy, request.request_id)
        return self._client.stub(self._policy.place).GenerateStream(request, **options)


S = TypeVar("S", bound=StreamCore)


class ClientCore(Generic[S]):
    """A connection to a deployment's public service."""

    _grpc: ClassVar[Any]
    """Module that opens channels: grpc, or grpc.aio."""
    _stream_type: type[S]

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        tls: TlsOption = False,
        token: str | None = None,
        allow_plaintext_token: bool = False,
        retries: int = 3,
    ) -> None:
        """Prepare a client; it connects on the first call.

        Args:
            address: host:port of a router, or several: if one does not answer or is full, the next one is
                tried.
            tls: True, a file of root certificates, or a `Tls` with the client's own certificate.
            token: API token, sent with every call.
            allow_plaintext_token: Send the token without TLS to another machine, too.
            retries: Most consecutive retries if a server does not answer or is full; 0 makes every failure
                final, also that of a broken stream.

        Raises:
            ConfigError: No address, an unreadable file, or a token that would travel in plaintext.
        """
        self._connection = make_connection(address, tls, token, allow_plaintext_token)
        self._retries = retries
        self._place = 0
        self._channels: dict[int, Any] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> S:
        """Stream a response as it is decided; otherwise as `generate`.

        A stream that breaks is resumed from the received tokens, at this server or the next one, if the
        rest is certain to be the same: in modes plain and exact, unless exact samples with coupling
        rejection.

        Raises:
            InvalidRequest: A value is invalid for every server. Errors of the server are raised by the
                stream.
        """
        request = make_request(prompt, max_new_tokens, sampling, speculation, **options)
        return self._stream_type(self, ReceivedStream(request), self.begin(timeout_s))

    def begin(self, timeout_s: float | None) -> RetryPolicy:
        """Return the retry policy of a new call; it begins at the address that answered last."""
        return RetryPolicy(
            self._retries, len(self._connection.addresses), self._place, timeout_s, time.monotonic()
        )

    def stub(self, place: int) -> Any:
        """Return the stub of the server at an address."""
        with self._lock:
            if self._is_closed:
                raise FlyServeError("the client is closed")
            if place not in self._channels:
                self._channels[place] = self._open(self._connection.addresses[place])
            return GenerationStub(self._channels[place])

    def call_options(self, policy: RetryPolicy, request_id: str = "") -> dict[str, Any]:
        """Return the keyword arguments of a call: the time left, credentials and the request id.

        Raise DeadlineExceeded if no time is left.
        """
        metadata = self._connection.metadata
        if request_id and request_id.isascii() and request_id.isprintable():
            metadata += (("x-request-id", request_id),)
        return {"timeout": policy.remaining_s(time.monotonic()), "metadata": metadata}

    def error(self, error: Any, policy: RetryPolicy) -> FlyServeError:
        """Return the error that the server reported."""
        return from_rpc_error(error, self._connection.addresses[policy.place])

    def answered(self, policy: RetryPolicy) -> None:
        """Begin later calls at this server: it answered."""
        policy.progressed()
        self._place = policy.place

    def _open(self, address: str) -> Any:
        credentials = self._connection.credentials
        if credentials is None:
            return self._grpc.insecure_channel(address, options=_OPTIONS)
        return self._grpc.secure_channel(address, credentials, options=_OPTIONS)

    def _release(self) -> list[Any]:
        """Return every open channel; no other one is opened from now on."""
        with self._lock:
            self._is_closed = True
            channels, self._channels = list(self._channels.values()), {}
        return channels
