"""What people import: the client and what it returns. Neither torch nor Ray is loaded."""

from fly.types import Coupling, EntropyEstimator, FinishReason, Mode, Tail, Verdict
from flyserve.client import Client
from flyserve.types import Choice, Chunk, Logprobs, Response, Round, Sampling, Speculation, Statistics, Token

__all__ = [
    "Choice",
    "Chunk",
    "Client",
    "Coupling",
    "EntropyEstimator",
    "FinishReason",
    "Logprobs",
    "Mode",
    "Response",
    "Round",
    "Sampling",
    "Speculation",
    "Statistics",
    "Tail",
    "Token",
    "Verdict",
]
