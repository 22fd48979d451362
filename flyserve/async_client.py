"""Asynchronous client, for an event loop: `Client` with await."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
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


class AsyncStream(StreamCore, AsyncIterator[Chunk]):
    """A response as it is decided: an async iterator of its chunks, and an async context manager.

    Leaving it (`aclose`, the end of an `async with` block, dropping the last reference, or cancelling the
    task that iterates) cancels the rest. Iterating raises what iterating a `Stream` raises.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the rest; another task that waits for a chunk sees the end."""
        self._cancel()

    async def __anext__(self) -> Chunk:
        try:
            while not self._closed.is_set():
                wire, fault = await self._read()
                if wire is not None:
                    self._client._answered(self._policy)
                    return self._received.take(wire)
                if self._received.is_finished or self._closed.is_set():
                    break
                await asyncio.sleep(self._received.next_delay_s(fault, self._policy, time.monotonic()))
        except BaseException:
            self._cancel()
            raise
        self._cancel()
        raise StopAsyncIteration

    async def _read(self) -> tuple[generation_pb2.GenerateChunk | None, Any]:
        """Return the next chunk, or the reason why there is none."""
        try:
            if self._call is None:
                self._call = self._open()
            wire = await self._call.read()
            if wire is not grpc.aio.EOF:
                return wire, None
            fault: FlyServeError = NotReady("the stream ended before the response did")
        except grpc.RpcError as error:
            fault = self._client._error(error, self._policy)
        except asyncio.CancelledError:
            fault = _closed_elsewhere()
        self._call = None
        return None, fault


class AsyncClient(ClientCore[AsyncStream]):
    """A connection to a deployment's public service; an async context manager, of one event loop."""

    _grpc: ClassVar[Any] = grpc.aio
    _stream_type = AsyncStream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every call and every connection."""
        for channel in self._release():
            await channel.close()

    async def generate(
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Response:
        """Generate a whole response; arguments and errors are those of `Client.generate`."""
        request = make_request("AsyncClient.generate", prompt, max_new_tokens, sampling, speculation, options)
        return response_from_wire(
            await self._call(
                lambda stub: stub.Generate, request_to_wire(request), timeout_s, request.request_id
            )
        )

    async def chat(
        self,
        messages: Messages,
        max_new_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Response:
        """Answer a conversation; arguments and errors are those of `Client.chat`."""
        make_request("AsyncClient.chat", "", max_new_tokens, sampling, speculation, options)
        prompt, left_s = await self._template(messages, timeout_s)
        return await self.generate(prompt, max_new_tokens, sampling, speculation, timeout_s=left_s, **options)

    async def stream_chat(
        self,
        messages: Messages,
        max_new_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncStream:
        """Stream the answer to a conversation, as in `async for chunk in await client.stream_chat(...)`.

        Arguments and errors are those of `Client.stream_chat`.
        """
        make_request("AsyncClient.stream_chat", "", max_new_tokens, sampling, speculation, options)
        prompt, left_s = await self._template(messages, timeout_s)
        return self.stream(prompt, max_new_tokens, sampling, speculation, timeout_s=left_s, **options)

    async def info(self, timeout_s: float | None = None) -> DeploymentInfo:
        """Return the models, defaults and limits of the deployment; raises what `Client.info` raises."""
        return deployment_from_wire(
            await self._call(lambda stub: stub.Info, common_pb2.InfoRequest(), timeout_s)
        )

    async def tokenize(
        self, text: str | Sequence[ChatMessage], timeout_s: float | None = None
    ) -> tuple[TextToken, ...]:
        """Return the tokens of a text or of a conversation; errors are those of `Client.tokenize`."""
        return text_tokens_from_wire(
            await self._call(lambda stub: stub.Tokenize, tokenize_to_wire(text), timeout_s)
        )

    async def _template(self, messages: Messages, timeout_s: float | None) -> tuple[list[int], float | None]:
        """Return the prompt of a conversation, and the seconds that are left."""
        begun = time.monotonic()
        prompt = [token.id for token in await self.tokenize(conversation(messages), timeout_s)]
        return prompt, None if timeout_s is None else timeout_s - (time.monotonic() - begun)

    async def _call(
        self, method: Callable[[Any], Any], request: Any, timeout_s: float | None, request_id: str = ""
    ) -> Any:
        policy = self._begin(timeout_s)
        while True:
            try:
                answer = await method(self._stub(policy.place))(
                    request, **self._call_options(policy, request_id)
                )
            except grpc.RpcError as error:
                fault = self._error(error, policy)
            except asyncio.CancelledError:
                fault = _closed_elsewhere()
            else:
                self._answered(policy)
                return answer
            await asyncio.sleep(policy.next_delay_s(fault, time.monotonic()))


def _closed_elsewhere() -> FlyServeError:
    """Return the error of a call that another task has cancelled, by closing its stream or its client.

    Call it where `CancelledError` is handled; raise that if the running task itself is cancelled.
    """
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise
    return FlyServeError("the client is closed")
