"""The client: text in, tokens with verdicts out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import grpc

from flyserve.codec import (
    chunk_from_wire,
    deployment_from_wire,
    request_to_wire,
    response_from_wire,
)
from flyserve.errors import from_rpc_error
from flyserve.types import Chunk, Deployment, Piece, Response, Sampling, Speculation
from protos.flyserve.v1 import common_pb2, generation_pb2
from protos.flyserve.v1.generation_pb2_grpc import GenerationStub

_OPTIONS = (("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000))


class Client:
    """A connection to a deployment's public service; a context manager. Safe to share among threads."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        """Connects on the first call; plaintext without credentials.

        Args:
            address: host:port of a router.
            credentials: For TLS.
        """
        self._address = address
        self._channel = (
            grpc.insecure_channel(address, _OPTIONS)
            if credentials is None
            else grpc.secure_channel(address, credentials, _OPTIONS)
        )
        self._stub = GenerationStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        stop: Sequence[str] = (),
        n: int | None = None,
        logprobs: int | None = None,
        timeout_s: float | None = None,
        cache_salt: str = "",
    ) -> Response:
        """Generates a whole response.

        Args:
            prompt: Text, or token ids.
            max_new_tokens: The server's default where it is None.
            sampling: Greedy where it is None.
            speculation: The server's default where it is None.
            stop: The response ends before the first of these strings.
            n: Choices, made side by side; one where it is None.
            logprobs: Tells log-probabilities, those of so many most likely tokens among them; 0 to 20.
            timeout_s: After which the work is given up everywhere.
            cache_salt: Only requests with the same one share what the servers remember of a prompt.

        Raises:
            InvalidRequest: A value that no server would take, or that this one refused.
            FlyServeError: What else the server refused, and why.
        """
        sampling, speculation = sampling or Sampling(), speculation or Speculation()
        request = request_to_wire(
            prompt, max_new_tokens, sampling, speculation, stop, n, logprobs, cache_salt
        )
        with self._raising():
            return response_from_wire(self._stub.Generate(request, timeout=timeout_s))

    def stream(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        stop: Sequence[str] = (),
        n: int | None = None,
        logprobs: int | None = None,
        timeout_s: float | None = None,
        cache_salt: str = "",
    ) -> Iterator[Chunk]:
        """As `generate`, but yields what is decided as it is decided; leaving the loop cancels the rest."""
        sampling, speculation = sampling or Sampling(), speculation or Speculation()
        request = request_to_wire(
            prompt, max_new_tokens, sampling, speculation, stop, n, logprobs, cache_salt
        )
        with self._raising():
            call = self._stub.GenerateStream(request, timeout=timeout_s)
            try:
                for chunk in call:
                    yield chunk_from_wire(chunk)
            finally:
                call.cancel()

    def info(self, timeout_s: float | None = None) -> Deployment:
        """What the deployment serves.

        Raises:
            FlyServeError: It serves nothing at present.
        """
        with self._raising():
            return deployment_from_wire(self._stub.Info(common_pb2.InfoRequest(), timeout=timeout_s))

    def tokenize(self, text: str, timeout_s: float | None = None) -> tuple[Piece, ...]:
        """Token ids of a text, as the server sees it.

        Raises:
            FlyServeError: What the server refused, and why.
        """
        with self._raising():
            wire = self._stub.Tokenize(generation_pb2.TokenizeRequest(text=text), timeout=timeout_s)
        return tuple(Piece(token, piece) for token, piece in zip(wire.ids, wire.pieces, strict=True))

    @contextmanager
    def _raising(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._address) from None
