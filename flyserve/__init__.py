"""What people import: the client and what it returns. Neither torch nor Ray is loaded."""

from flyserve.client import Client
from flyserve.types import Chunk, Response, Sampling, Speculation, Statistics, Token

__all__ = ["Chunk", "Client", "Response", "Sampling", "Speculation", "Statistics", "Token"]
