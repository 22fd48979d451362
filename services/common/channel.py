"""Channels from one service to another, and the delays between attempts to use them."""

import grpc

from flyserve.wire.channel import CHANNEL_OPTIONS, NO_PROXY
from services.common.in_process.channel import InProcessChannel
from services.common.in_process.server import is_in_process
from services.common.security.identity import PeerTls

_OPTIONS = (
    *CHANNEL_OPTIONS,
    NO_PROXY,
    # A connection of its own per channel: closing one must not disturb another's connection.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str, tls: PeerTls | None = None) -> grpc.aio.Channel:
    """Return a channel to `host:port`; plaintext without `tls`. The caller closes it.

    An address such as `inprocess:target-0` is that of a server in this process and event loop.

    NOTE: a channel keeps the certificate that it was opened with. A caller that keeps a channel for long
    must open another one when the files have changed.
    """
    if is_in_process(address):
        return InProcessChannel(address)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    named = ("grpc.ssl_target_name_override", tls.name)
    return grpc.aio.secure_channel(address, tls.credentials, options=(*_OPTIONS, named))


_FIRST_S = 0.1
_LONGEST_S = 5.0


class Backoff:
    """Delays that double from 0.1 s to 5 s."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        """Return the delay in seconds before this retry; the next delay is longer."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, _LONGEST_S)
        return wait_s
