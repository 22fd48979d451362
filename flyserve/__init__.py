"""What people import: the clients and what they return. Neither torch nor Ray is loaded."""

from fly.errors import (
    ConfigError,
    DeadlineExceeded,
    FlyServeError,
    InvalidRequest,
    NotReady,
    Overloaded,
    Unauthenticated,
)
from fly.types import Coupling, DraftLengthPolicy, EntropyEstimator, FinishReason, Mode, Tail, Verdict
from flyserve.async_client import AsyncClient, AsyncStream
from flyserve.client import Client, Stream
from flyserve.connection import Tls
from flyserve.errors import StreamBroken
from flyserve.types import (
    Choice,
    Chunk,
    Deployment,
    Limits,
    Logprobs,
    Message,
    Model,
    Piece,
    RankedToken,
    Response,
    Round,
    Sampling,
    Speculation,
    Statistics,
    Token,
)

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Choice",
    "Chunk",
    "Client",
    "ConfigError",
    "Coupling",
    "DeadlineExceeded",
    "Deployment",
    "DraftLengthPolicy",
    "EntropyEstimator",
    "FinishReason",
    "FlyServeError",
    "InvalidRequest",
    "Limits",
    "Logprobs",
    "Message",
    "Mode",
    "Model",
    "NotReady",
    "Overloaded",
    "Piece",
    "RankedToken",
    "Response",
    "Round",
    "Sampling",
    "Speculation",
    "Statistics",
    "Stream",
    "StreamBroken",
    "Tail",
    "Tls",
    "Token",
    "Unauthenticated",
    "Verdict",
]
