"""The in-process transport itself: what gRPC's clients and servers expect of it beside the streams."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flyserve.core.errors import ConfigError, InvalidRequest, Overloaded
from flyserve.v1 import common_pb2, target_pb2, target_pb2_grpc
from flyserve.v1.target_pb2_grpc import TargetStub
from flyserve.wire.status import from_peer_error
from services.common.channel import open_channel
from services.common.host import Host, Service
from tests.contract.fakes import FakeTarget, HashModel
from tests.support.serving import becomes_true, connected, serving

ADDRESS = "inprocess:tested"
TIMEOUT_S = 240.0
OF_CALLER: ContextVar[str] = ContextVar("of_caller", default="")
INFO = common_pb2.InfoRequest()


class Scripted(target_pb2_grpc.TargetServicer):
    """A servicer whose methods do what a test says."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.blocks = asyncio.Event()
        self.blocks.set()
        self.contexts: list[Any] = []
        self.num_running = 0
        self.inherited = ""

    @property
    def host(self) -> Host:
        def register(server: grpc.aio.Server) -> None:
            target_pb2_grpc.add_TargetServicer_to_server(self, server)

        return Host(Service("flyserve.v1.Target", register, self._close), ADDRESS)

    async def _close(self) -> None:
        return None

    async def Info(self, request: Any, context: Any) -> Any:
        self.contexts.append(context)
        self.inherited = OF_CALLER.get()
        self.num_running += 1
        try:
            await self.blocks.wait()
            if self.error is not None:
                raise self.error
            return common_pb2.InfoResponse()
        finally:
            self.num_running -= 1


@pytest.fixture
def servicer() -> Scripted:
    return Scripted()


@pytest.fixture
async def stub(servicer: Scripted) -> AsyncIterator[Any]:
    async with connected(servicer.host) as channel:
        yield TargetStub(channel)


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, TIMEOUT_S)
    return caught.value


async def test_errors_cross_with_their_details(stub: Any, servicer: Scripted) -> None:
    servicer.error = InvalidRequest.of("decided", "is 9, at most 4")
    found = from_peer_error(await error_of(stub.Info(INFO)))
    assert isinstance(found, InvalidRequest) and found.violations[0].field == "decided"
    servicer.error = Overloaded("full", retry_after_s=7.0)
    full = from_peer_error(await error_of(stub.Info(INFO)))
    assert isinstance(full, Overloaded) and full.retry_after_s == 7.0
    servicer.error = RuntimeError("secret")
    error = await error_of(stub.Info(INFO))
    assert error.code() is grpc.StatusCode.INTERNAL and "secret" not in str(error.details())


async def test_a_deadline_ends_the_call_at_both_ends(stub: Any, servicer: Scripted) -> None:
    servicer.blocks.clear()
    error = await error_of(stub.Info(INFO, timeout=0.1))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await becomes_true(lambda: not servicer.num_running, TIMEOUT_S)
    assert servicer.contexts[0].time_remaining() == 0.0


async def test_a_cancelled_client_cancels_the_method(stub: Any, servicer: Scripted) -> None:
    servicer.blocks.clear()
    task = asyncio.ensure_future(stub.Info(INFO))
    assert await becomes_true(lambda: servicer.num_running == 1, TIMEOUT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await becomes_true(lambda: not servicer.num_running, TIMEOUT_S)


async def test_a_method_sees_the_metadata_and_nothing_else_of_its_caller(
    stub: Any, servicer: Scripted
) -> None:
    OF_CALLER.set("its span and its request")
    await stub.Info(INFO, metadata=(("traceparent", "00-1"),))
    (context,) = servicer.contexts
    assert tuple(context.invocation_metadata()) == (("traceparent", "00-1"),)
    assert context.time_remaining() is None
    assert not servicer.inherited


async def test_an_unknown_method_and_a_message_that_is_none_are_rejected() -> None:
    async with connected(FakeTarget(HashModel(), address=ADDRESS).host) as channel:
        raw: dict[str, Any] = {"request_serializer": bytes, "response_deserializer": bytes}
        unknown = await error_of(channel.unary_unary("/flyserve.v1.Target/Nothing", **raw)(b""))
        assert unknown.code() is grpc.StatusCode.UNIMPLEMENTED
        broken = await error_of(channel.unary_unary("/flyserve.v1.Target/Info", **raw)(b"\xff"))
        assert broken.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_its_health_can_be_watched() -> None:
    host = FakeTarget(HashModel(), address=ADDRESS).host
    async with connected(host) as channel:
        states = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        assert (await anext(states)).status == health_pb2.HealthCheckResponse.SERVING
        drain = asyncio.create_task(host.drain(5.0))
        assert (await anext(states)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await asyncio.wait_for(drain, TIMEOUT_S)


async def test_one_address_has_one_server_and_is_free_again_after_it() -> None:
    async with serving(FakeTarget(HashModel(), address=ADDRESS).host):
        with pytest.raises(ConfigError, match="address: inprocess:tested is in use"):
            await FakeTarget(HashModel(), address=ADDRESS).host.start()
        async with open_channel(ADDRESS) as channel:
            await TargetStub(channel).Info(INFO)
    async with serving(FakeTarget(HashModel(), address=ADDRESS).host), open_channel(ADDRESS) as channel:
        await TargetStub(channel).Info(INFO)


async def test_nothing_answers_where_there_is_no_server() -> None:
    async with open_channel("inprocess:nothing") as channel:
        assert channel.get_state() is not grpc.ChannelConnectivity.READY
        error = await error_of(TargetStub(channel).Info(INFO))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert str(from_peer_error(error)) == "failed to connect to inprocess:nothing"


async def test_a_drain_lets_calls_finish_and_its_end_stops_them(servicer: Scripted) -> None:
    for grace_s, code in ((TIMEOUT_S, grpc.StatusCode.OK), (0.05, grpc.StatusCode.UNAVAILABLE)):
        host = servicer.host
        servicer.blocks.clear()
        await host.start()
        async with open_channel(host.address) as channel:
            call = TargetStub(channel).Info(INFO)
            assert await becomes_true(lambda: servicer.num_running == 1, TIMEOUT_S)
            lost = asyncio.create_task(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
            drain = asyncio.create_task(host.drain(grace_s))
            await asyncio.wait_for(lost, TIMEOUT_S)
            late = await error_of(TargetStub(channel).Info(INFO))
            assert late.code() is grpc.StatusCode.UNAVAILABLE
            if code is grpc.StatusCode.OK:
                servicer.blocks.set()
            assert await asyncio.wait_for(call.code(), TIMEOUT_S) is code
            await asyncio.wait_for(drain, TIMEOUT_S)
    assert not servicer.num_running


async def test_a_closed_channel_ends_its_calls(servicer: Scripted) -> None:
    servicer.blocks.clear()
    async with serving(servicer.host) as address:
        async with open_channel(address) as channel:
            call = TargetStub(channel).Info(INFO)
            assert await becomes_true(lambda: servicer.num_running == 1, TIMEOUT_S)
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        assert await call.code() is grpc.StatusCode.CANCELLED
        assert await becomes_true(lambda: not servicer.num_running, TIMEOUT_S)


async def test_a_stream_takes_no_request_after_its_end() -> None:
    async with connected(FakeTarget(HashModel(), address=ADDRESS).host) as channel:
        call = TargetStub(channel).VerifyBatches()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.read() is grpc.aio.EOF
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(target_pb2.VerifyRequests())
