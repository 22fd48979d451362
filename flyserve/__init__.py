"""Python API: the clients, requests, responses and errors. Loads neither torch nor Ray nor pydantic."""

from fly.errors import (
    ConfigError,
    DeadlineExceeded,
    FlyServeError,
    InvalidRequest,
    NotReady,
    Overloaded,
    Unauthenticated,
)
from fly.grammar import Grammar, GrammarKind
from fly.messages import ModelInfo
from fly.request import ChatMessage, DraftLength, SamplingParams, SpeculationParams
from fly.response import Choice, Chunk, DeploymentInfo, Response, Round, Statistics, TextToken
from fly.types import (
    Coupling,
    DraftLengthPolicy,
    EntropyEstimator,
    FinishReason,
    Logprobs,
    Mode,
    RankedToken,
    TailPolicy,
    Token,
    Verdict,
)
from flyserve.async_client import AsyncClient, AsyncStream
from flyserve.client import Client, Stream
from flyserve.connection import Tls
from flyserve.received import StreamBroken

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "ChatMessage",
    "Choice",
    "Chunk",
    "Client",
    "ConfigError",
    "Coupling",
    "DeadlineExceeded",
    "DeploymentInfo",
    "DraftLength",
    "DraftLengthPolicy",
    "EntropyEstimator",
    "FinishReason",
    "FlyServeError",
    "Grammar",
    "GrammarKind",
    "InvalidRequest",
    "Logprobs",
    "Mode",
    "ModelInfo",
    "NotReady",
    "Overloaded",
    "RankedToken",
    "Response",
    "Round",
    "SamplingParams",
    "SpeculationParams",
    "Statistics",
    "Stream",
    "StreamBroken",
    "TailPolicy",
    "TextToken",
    "Tls",
    "Token",
    "Unauthenticated",
    "Verdict",
]
