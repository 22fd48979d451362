"""Base of the blocking and the asynchronous client: addresses, channels, retries, errors."""

import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from fly.errors import FlyServeError
from flyserve.connection import TlsOption, make_connection
from flyserve.retries import RetryPolicy
from protos.flyserve.v1.generation_pb2_grpc import GenerationStub
from protos.wire.channel import CHANNEL_OPTIONS
from protos.wire.status import from_rpc_error

_OPTIONS: Sequence[tuple[str, Any]] = (
    *CHANNEL_OPTIONS,
    # The client retries only calls that are safe; gRPC's own retries would multiply them.
    ("grpc.enable_retries", 0),
    # Sixteen choices with twenty log-probabilities a token exceed gRPC's 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
)


class ClientCore:
    """A connection to a deployment's public service."""

    _grpc: ClassVar[Any]
    """Module that opens channels: grpc, or grpc.aio."""

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

        Raises:
            DeadlineExceeded: No time is left.
        """
        named = (("x-request-id", request_id),) if request_id.isascii() and request_id.isprintable() else ()
        metadata = (*self._connection.metadata, *(pair for pair in named if pair[1]))
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
