"""The blocking client: text in, tokens with verdicts out."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar, Unpack

import grpc

from fly.errors import FlyServeError, NotReady
from flyserve.codec import deployment_from_wire, pieces_from_wire, response_from_wire, tokenize_to_wire
from flyserve.core import ClientCore
from flyserve.options import Prompt, RequestOptions, make_request
from flyserve.received import ReceivedStream
from flyserve.retries import Tries
from flyserve.types import Chunk, Deployment, Message, Piece, Response, Sampling, Speculation
from protos.flyserve.v1 import common_pb2, generation_pb2

T = TypeVar("T")


class Client(ClientCore):
    """A connection to a deployment's public service; a context manager. Safe to share among threads."""

    _grpc: ClassVar[Any] = grpc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every call and every connection."""
        for channel in self._release():
            channel.close()

    def generate(
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Response:
        """Generates a whole response; if its server is lost meanwhile, the next one begins again.

        Args:
            prompt: Text, or token ids.
            max_new_tokens: The server's default where it is None.
            sampling: Greedy where it is None.
            speculation: The server's default where it is None.
            timeout_s: After which the work is given up everywhere; retries and their waits included.
            options: The rest of a request, see `RequestOptions`.

        Raises:
            InvalidRequest: A value that no server would take, or that this one rejected.
            NotReady: No server is there, after the last retry.
            Overloaded: Every server is full, after the last retry; says when to come back.
            Unauthenticated: The server wants another token, or a certificate.
            DeadlineExceeded: `timeout_s` has passed.
            FlyServeError: What else the server rejected, and why.
        """
        request = make_request(prompt, max_new_tokens, sampling, speculation, **options)
        return response_from_wire(
            self._answer(lambda stub: stub.Generate, request, timeout_s, request.request_id)
        )

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> "Stream":
        """As `generate`, but gives what is decided as it is decided.

        A stream that breaks is resumed from the tokens received, at this server or the next, where the rest
        is sure to be what it would have been: in modes plain and exact, unless exact samples with coupling
        rejection.

        Raises:
            InvalidRequest: A value that no server would take. What the server rejects, the stream raises.
        """
        request = make_request(prompt, max_new_tokens, sampling, speculation, **options)
        return Stream(self, ReceivedStream(request), self.begin(timeout_s))

    def info(self, timeout_s: float | None = None) -> Deployment:
        """What the deployment serves.

        Raises:
            FlyServeError: It serves nothing at present.
        """
        return deployment_from_wire(self._answer(lambda stub: stub.Info, common_pb2.InfoRequest(), timeout_s))

    def tokenize(self, text: str | Sequence[Message], timeout_s: float | None = None) -> tuple[Piece, ...]:
        """Token ids of a text as the server sees it, or of a conversation: the prompt of its next turn.

        Raises:
            InvalidRequest: The text is too long, or the model has no chat template, or it rejects the turns.
            FlyServeError: What else the server rejected, and why.
        """
        request = tokenize_to_wire(text)
        return pieces_from_wire(self._answer(lambda stub: stub.Tokenize, request, timeout_s))

    def _answer(
        self, method: Callable[[Any], Any], request: Any, timeout_s: float | None, request_id: str = ""
    ) -> Any:
        tries = self.begin(timeout_s)
        while True:
            try:
                answer = method(self.stub(tries.place))(request, **self.call_options(tries, request_id))
            except grpc.RpcError as error:
                wait_s = tries.again_after_s(self.error(error, tries), time.monotonic())
            else:
                self.answered(tries)
                return answer
            time.sleep(wait_s)


class Stream(Iterator[Chunk]):
    """A response as it is decided: an iterator of its chunks, and a context manager.

    Leaving it (`close`, the end of a `with` block, or letting go of it) cancels the rest. Iterating raises
    what `Client.generate` raises, and `StreamBroken` where the connection is lost in mid-response and the
    rest cannot be had as it would have been.
    """

    def __init__(self, client: Client, received: ReceivedStream, tries: Tries) -> None:
        self._client = client
        self._received = received
        self._tries = tries
        self._call: Any = None
        self._closed = threading.Event()

    @property
    def response(self) -> Response:
        """All that has been received."""
        return self._received.response

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the rest; another thread that waits for a chunk sees the end."""
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    def __next__(self) -> Chunk:
        try:
            while not self._closed.is_set():
                wire, fault = self._read()
                if wire is not None:
                    self._client.answered(self._tries)
                    return self._received.take(wire)
                if self._received.is_finished or self._closed.is_set():
                    break
                self._closed.wait(self._received.again_after_s(fault, self._tries, time.monotonic()))
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def _read(self) -> tuple[generation_pb2.GenerateChunk | None, Any]:
        """The next chunk, or why there is none."""
        try:
            if self._call is None:
                self._call = self._open()
            return next(self._call), None
        except StopIteration:
            fault: FlyServeError = NotReady("the stream ended before the response did")
        except grpc.RpcError as error:
            fault = self._client.error(error, self._tries)
        self._call = None
        return None, fault

    def _open(self) -> Any:
        request = self._received.request
        options = self._client.call_options(self._tries, request.request_id)
        return self._client.stub(self._tries.place).GenerateStream(request, **options)
