"""Error of a stream that broke in mid-response."""

from fly.errors import FlyServeError
from fly.response import Response


class StreamBroken(FlyServeError):
    """A stream broke in mid-response, and the rest cannot be resumed exactly.

    Attributes:
        received: Received part of the response; a choice that was cut short has no finish reason.
    """

    def __init__(self, message: str, received: Response) -> None:
        self.received = received
        super().__init__(message, received)

    def __str__(self) -> str:
        return str(self.args[0])
