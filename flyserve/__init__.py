"""Python API: the clients, requests, responses and errors. Loads neither torch nor Ray nor pydantic.

Its modules are imported when a name of it is first used: the command line handles signals before that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flyserve.async_client import AsyncClient, AsyncStream
    from flyserve.client import Client, Stream
    from flyserve.connection import Tls
    from flyserve.core.errors import (
        ConfigError,
        DeadlineExceeded,
        FieldViolation,
        FlyServeError,
        InternalError,
        InvalidRequest,
        NotReady,
        Overloaded,
        Unauthenticated,
    )
    from flyserve.core.grammar import Grammar, GrammarKind
    from flyserve.core.messages import ModelInfo
    from flyserve.core.request import ChatMessage, DraftLength, SamplingParams, SpeculationParams
    from flyserve.core.response import Choice, Chunk, DeploymentInfo, Response, Round, Statistics, TextToken
    from flyserve.core.spans import Span
    from flyserve.core.types import (
        Coupling,
        EntropyEstimator,
        FinishReason,
        Logprobs,
        Mode,
        PromptToken,
        RankedToken,
        TailPolicy,
        Token,
        Verdict,
    )
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
    "EntropyEstimator",
    "FieldViolation",
    "FinishReason",
    "FlyServeError",
    "Grammar",
    "GrammarKind",
    "InternalError",
    "InvalidRequest",
    "Logprobs",
    "Mode",
    "ModelInfo",
    "NotReady",
    "Overloaded",
    "PromptToken",
    "RankedToken",
    "Response",
    "Round",
    "SamplingParams",
    "Span",
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

_MODULES = (
    "flyserve.core.errors",
    "flyserve.core.types",
    "flyserve.core.grammar",
    "flyserve.core.messages",
    "flyserve.core.spans",
    "flyserve.core.request",
    "flyserve.core.response",
    "flyserve.connection",
    "flyserve.received",
    "flyserve.client",
    "flyserve.async_client",
)
"""The modules of these names, light ones first."""


def __getattr__(name: str) -> Any:
    """Return a name of the API from the first of its modules that has it."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
