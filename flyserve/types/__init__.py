"""What a request says and what a response tells."""

from flyserve.types.deployment import Deployment, Limits, Model, Piece
from flyserve.types.request import Message, Sampling, Speculation
from flyserve.types.response import Choice, Chunk, Logprobs, RankedToken, Response, Round, Statistics, Token

__all__ = [
    "Choice",
    "Chunk",
    "Deployment",
    "Limits",
    "Logprobs",
    "Message",
    "Model",
    "Piece",
    "RankedToken",
    "Response",
    "Round",
    "Sampling",
    "Speculation",
    "Statistics",
    "Token",
]
