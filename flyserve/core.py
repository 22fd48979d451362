"""What the blocking and the asynchronous client share: servers, channels, tries, errors."""

import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from fly.errors import FlyServeError
from flyserve.connection import OPTIONS, TlsOption, make_connection
from flyserve.errors import from_rpc_error
from flyserve.retries import Tries
from protos.flyserve.v1.generation_pb2_grpc import GenerationStub


class ClientCore:
    """A connection to a deployment's public service."""

    _grpc: ClassVar[Any]
    """The module that opens channels: grpc, or grpc.aio."""

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        tls: TlsOption = False,
        token: str | None = None,
        allow_plaintext_token: bool = False,
        retries: int = 3,
    ) -> None:
        """Connects on the first call.

        Args:
            address: host:port of a router, or several: when one is not there or full, the next one is asked.
            tls: True, a file of root certificates, or a `Tls` with the client's own certificate.
            token: Sent as a bearer token with every call.
            allow_plaintext_token: Also without TLS to another machine.
            retries: Further tries in a row where a server is not there, or full; 0 makes every failure
                final, a broken stream's too.

        Raises:
            ConfigError: No address, an unreadable file, or a token that would travel in plaintext.
        """
        self._connection = make_connection(address, tls, token, allow_plaintext_token)
        self._retries = retries
        self._place = 0
        self._channels: dict[int, Any] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def begin(self, timeout_s: float | None) -> Tries:
        """The tries of a new call, at the address that answered last."""
        return Tries(self._retries, len(self._connection.addresses), self._place, timeout_s, time.monotonic())

    def stub(self, place: int) -> Any:
        """What calls the server at an address."""
        with self._lock:
            if self._is_closed:
                raise FlyServeError("the client is closed")
            if place not in self._channels:
                self._channels[place] = self._open(self._connection.addresses[place])
            return GenerationStub(self._channels[place])

    def call_options(self, tries: Tries, request_id: str = "") -> dict[str, Any]:
        """Keyword arguments of a call: what is left of its time, who calls, and which request it is.

        Raises:
            DeadlineExceeded: No time is left.
        """
        named = (("x-request-id", request_id),) if request_id.isascii() and request_id.isprintable() else ()
        metadata = (*self._connection.metadata, *(pair for pair in named if pair[1]))
        return {"timeout": tries.remaining_s(time.monotonic()), "metadata": metadata}

    def error(self, error: Any, tries: Tries) -> FlyServeError:
        """What the server meant by a failed call."""
        return from_rpc_error(error, self._connection.addresses[tries.place])

    def answered(self, tries: Tries) -> None:
        """The server is there: later calls begin with it."""
        tries.progressed()
        self._place = tries.place

    def _open(self, address: str) -> Any:
        credentials = self._connection.credentials
        if credentials is None:
            return self._grpc.insecure_channel(address, options=OPTIONS)
        return self._grpc.secure_channel(address, credentials, options=OPTIONS)

    def _release(self) -> list[Any]:
        """Every channel that was opened; none is opened from now on."""
        with self._lock:
            self._is_closed = True
            channels, self._channels = list(self._channels.values()), {}
        return channels
