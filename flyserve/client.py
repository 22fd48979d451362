"""Blocking client: text in, tokens with verdicts out."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, Unpack

import grpc

from flyserve.client_base import ClientCore, StreamCore
from flyserve.core.errors import FlyServeError, NotReady
from flyserve.core.request import ChatMessage, SamplingParams, SpeculationParams
from flyserve.core.response import Chunk, DeploymentInfo, Response, TextToken
from flyserve.requests import Messages, Prompt, RequestOptions, conversation, make_request
from flyserve.v1 import common_pb2, generation_pb2
from flyserve.wire.generation import (
    deployment_from_wire,
    request_to_wire,
    response_from_wire,
    text_tokens_from_wire,
    tokenize_to_wire,
)


class Stream(StreamCore, Iterator[Chunk]):
    """A response as it is decided: an iterator of its chunks, and a context manager.

    Leaving it (`close`, the end of a `with` block, or dropping the last reference) cancels the rest.
    Iterating raises what `Client.generate` raises, and `StreamBroken` if the connection is lost in
    mid-response and the rest cannot be resumed exactly.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the rest; another thread that waits for a chunk sees the end."""
        self._cancel()

    def __next__(self) -> Chunk:
        try:
            while not self._closed.is_set():
                wire, fault = self._read()
                if wire is not None:
                    self._client._answered(self._policy)
                    return self._received.take(wire)
                if self._received.is_finished or self._closed.is_set():
                    break
                self._closed.wait(self._received.next_delay_s(fault, self._policy, time.monotonic()))
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def _read(self) -> tuple[generation_pb2.GenerateChunk | None, Any]:
        """Return the next chunk, or the reason why there is none."""
        try:
            if self._call is None:
                self._call = self._open()
                if self._closed.is_set():  # by another thread, which has not seen the call
                    self._call.cancel()
            return next(self._call), None
        except StopIteration:
            fault: FlyServeError = NotReady("the stream ended before the response did")
        except grpc.RpcError as error:
            fault = self._client._error(error, self._policy)
        except RuntimeError as error:
            # NOTE: if a signal arrives while gRPC waits for its own lock, leaving that fails and hides it.
            if isinstance(error.__context__, KeyboardInterrupt | SystemExit):
                raise error.__context__ from None
            raise
        self._call = None
        return None, fault


class Client(ClientCore[Stream]):
    """A connection to a deployment's public service; a context manager. Safe to share among threads."""

    _grpc: ClassVar[Any] = grpc
    _stream_type = Stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every call and every connection."""
        for channel in self._release():
            channel.close()

    def generate(
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Response:
        """Generate a whole response; if the connection is lost, generate it again at the next server.

        Args:
            prompt: Text, or token ids.
            max_new_tokens: Most new tokens; None takes the deployment's default.
            sampling: None is greedy.
            speculation: None takes the deployment's default.
            timeout_s: Seconds after which the call is cancelled everywhere; retries and their delays
                included. None is no limit.
            options: Other fields of a request, as in `temperature=0.7`, `mode="exact"`, `stop="END"`: see
                `RequestOptions`.

        Raises:
            InvalidRequest: A value is invalid for every server, or this server rejected it.
            NotReady: No server answered, after the last retry.
            Overloaded: Every server is full, after the last retry; has a retry delay.
            Unauthenticated: The server requires another token, or a certificate.
            DeadlineExceeded: `timeout_s` has passed.
            FlyServeError: The server reported another error.
        """
        request = make_request("Client.generate", prompt, max_new_tokens, sampling, speculation, options)
        return response_from_wire(
            self._call(lambda stub: stub.Generate, request_to_wire(request), timeout_s, request.request_id)
        )

    def chat(
        self,
        messages: Messages,
        max_new_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Response:
        """Answer a conversation, which the chat template of the model turns into a prompt.

        Args:
            messages: Messages with `role` and `content`, or the text of a single one of the user.
            max_new_tokens: As in `generate`, which has the other arguments and errors, too.
            sampling: As in `generate`.
            speculation: As in `generate`.
            timeout_s: As in `generate`.
            options: As in `generate`.

        Raises:
            InvalidRequest: The chat template is missing, or rejects the messages; and as `generate`.
        """
        make_request("Client.chat", "", max_new_tokens, sampling, speculation, options)
        prompt, left_s = self._template(messages, timeout_s)
        return self.generate(prompt, max_new_tokens, sampling, speculation, timeout_s=left_s, **options)

    def stream_chat(
        self,
        messages: Messages,
        max_new_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Stream:
        """Stream the answer to a conversation; arguments as in `chat`, errors as in `chat` and `stream`."""
        make_request("Client.stream_chat", "", max_new_tokens, sampling, speculation, options)
        prompt, left_s = self._template(messages, timeout_s)
        return self.stream(prompt, max_new_tokens, sampling, speculation, timeout_s=left_s, **options)

    def info(self, timeout_s: float | None = None) -> DeploymentInfo:
        """Return the models, defaults and limits; raises FlyServeError if nothing is served at present."""
        return deployment_from_wire(self._call(lambda stub: stub.Info, common_pb2.InfoRequest(), timeout_s))

    def tokenize(
        self, text: str | Sequence[ChatMessage], timeout_s: float | None = None
    ) -> tuple[TextToken, ...]:
        """Return the tokens of a text, or of a conversation: the prompt of its next turn.

        Raises:
            InvalidRequest: The text is too long, or the chat template is missing or rejects the messages.
            FlyServeError: The server reported another error.
        """
        request = tokenize_to_wire(text)
        return text_tokens_from_wire(self._call(lambda stub: stub.Tokenize, request, timeout_s))

    def _template(self, messages: Messages, timeout_s: float | None) -> tuple[list[int], float | None]:
        """Return the prompt of a conversation, and the seconds that are left."""
        begun = time.monotonic()
        prompt = [token.id for token in self.tokenize(conversation(messages), timeout_s)]
        return prompt, None if timeout_s is None else timeout_s - (time.monotonic() - begun)

    def _call(
        self, method: Callable[[Any], Any], request: Any, timeout_s: float | None, request_id: str = ""
    ) -> Any:
        policy = self._begin(timeout_s)
        while True:
            try:
                answer = method(self._stub(policy.place))(request, **self._call_options(policy, request_id))
            except grpc.RpcError as error:
                fault = self._error(error, policy)
            else:
                self._answered(policy)
                return answer
            self._closed.wait(policy.next_delay_s(fault, time.monotonic()))
