"""Bases of both clients and their streams: channels, retries, errors."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from flyserve.connection import TlsOption, is_local, make_connection
from flyserve.core.errors import START_FIRST, FlyServeError
from flyserve.core.request import SamplingParams, SpeculationParams
from flyserve.core.response import Response
from flyserve.core.version import VERSION, VERSION_HEADER
from flyserve.received import ReceivedStream
from flyserve.requests import Prompt, RequestOptions, make_request
from flyserve.retries import RetryPolicy
from flyserve.v1.generation_pb2_grpc import GenerationStub
from flyserve.wire.channel import CHANNEL_OPTIONS, NO_PROXY
from flyserve.wire.status import from_rpc_error

ADDRESS_VARIABLE = "FLYSERVE_ADDRESS"
"""Environment variable with the address of the router, or several between spaces, for clients without one."""
DEFAULT_ADDRESS = "127.0.0.1:50051"
"""Address of the router without that variable."""

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
        options = self._client._call_options(self._policy, request.request_id)
        return self._client._stub(self._policy.place).GenerateStream(request, **options)


S = TypeVar("S", bound=StreamCore)


class ClientCore(Generic[S]):
    """A connection to a deployment's public service."""

    _grpc: ClassVar[Any]
    """Module that opens channels: grpc, or grpc.aio."""
    _stream_type: type[S]

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        tls: TlsOption = False,
        token: str | None = None,
        allow_plaintext_token: bool = False,
        retries: int = 3,
    ) -> None:
        """Prepare a client; it connects on the first call.

        Args:
            address: host:port of a router, or several: if one does not answer or is full, the next one is
                tried. By default that of the environment variable FLYSERVE_ADDRESS, or 127.0.0.1:50051.
            tls: True, a file of root certificates, or a `Tls` with the client's own certificate.
            token: API token, sent with every call.
            allow_plaintext_token: Send the token without TLS to another machine, too.
            retries: Most consecutive retries if a server does not answer or is full; 0 makes every failure
                final, also that of a broken stream.

        Raises:
            ConfigError: No address, an unreadable file, or a token that would travel in plaintext.
        """
        if address is None:
            address = os.environ.get(ADDRESS_VARIABLE, "").split() or DEFAULT_ADDRESS
        self._connection = make_connection(address, tls, token, allow_plaintext_token)
        self._retries = retries
        self._place = 0
        self._channels: dict[int, Any] = {}
        self._closed = threading.Event()
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
        caller = f"{type(self).__name__}.stream"
        request = make_request(caller, prompt, max_new_tokens, sampling, speculation, options)
        return self._stream_type(self, ReceivedStream(request), self._begin(timeout_s))

    def _begin(self, timeout_s: float | None) -> RetryPolicy:
        """Return the retry policy of a new call; it begins at the address that answered last."""
        return RetryPolicy(
            self._retries, len(self._connection.addresses), self._place, timeout_s, time.monotonic()
        )

    def _stub(self, place: int) -> Any:
        """Return the stub of the server at an address."""
        with self._lock:
            if self._closed.is_set():
                raise FlyServeError("the client is closed")
            if place not in self._channels:
                self._channels[place] = self._open(self._connection.addresses[place])
            return GenerationStub(self._channels[place])

    def _call_options(self, policy: RetryPolicy, request_id: str = "") -> dict[str, Any]:
        """Return the keyword arguments of a call: the time left, credentials and the request id.

        Raise DeadlineExceeded if no time is left.
        """
        metadata = (*self._connection.metadata, (VERSION_HEADER, VERSION))
        if request_id and request_id.isascii() and request_id.isprintable():
            metadata += (("x-request-id", request_id),)
        return {"timeout": policy.remaining_s(time.monotonic()), "metadata": metadata}

    def _error(self, error: Any, policy: RetryPolicy) -> FlyServeError:
        """Return the error that the server reported."""
        return from_rpc_error(error, self._connection.addresses[policy.place], START_FIRST)

    def _answered(self, policy: RetryPolicy) -> None:
        """Begin later calls at this server: it answered."""
        policy.progressed()
        self._place = policy.place

    def _open(self, address: str) -> Any:
        credentials = self._connection.credentials
        options = (*_OPTIONS, NO_PROXY) if is_local(address) else _OPTIONS
        if credentials is None:
            return self._grpc.insecure_channel(address, options=options)
        return self._grpc.secure_channel(address, credentials, options=options)

    def _release(self) -> list[Any]:
        """Return every open channel; no other one is opened from now on."""
        with self._lock:
            self._closed.set()
            channels, self._channels = list(self._channels.values()), {}
        return channels
