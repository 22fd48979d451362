"""Every service on one loop, and any input for each of its RPCs: all answer with a clean status.

They keep serving, and leak nothing.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fly.endpoints import Endpoint
from fly.messages import Close, DraftStep, Open, Role, VerifyStep
from fly.request import SamplingParams
from fly.sequence import SequenceMirror, TokenSequence
from orchestration.control.registry import Registry, registry_service
from protos.flyserve.v1 import common_pb2, drafter_pb2, generation_pb2, registry_pb2, target_pb2
from protos.wire.streams import draft_request_to_wire, verify_request_to_wire
from router.config import RouterConfig
from router.server import create_host as create_router
from services.common.config import parse
from services.common.host import Host
from services.drafter.config import DrafterConfig
from services.drafter.servicer import create_host as create_drafter
from services.lookup.config import LOOKUPS
from services.lookup.servicer import create_host as create_sub_drafter
from services.target.config import TargetConfig
from services.target.servicer import create_host as create_target
from tests.contract.fakes import save_tokenizer
from tests.contract.router_rig import FLY, make_request
from tests.support.wire_fuzz import requests_from

BATCH = 20
TIMEOUT_S = 120.0
"""Deadline of a call: only one that the server leaves open lasts for so long."""
CLEAN = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
SIMULATED = {
    "simulated": {"base_s": 0.0, "per_token_s": 0.0, "per_token_above_s": 0.0, "vocab_size": 304},
    "kv_tokens": 16_384,
}
ROUTER = {
    "grpc_port": 0,
    # A request may ask for weights that nobody has.
    "replica_wait_s": 0.05,
    "limits": {"max_new_tokens": 12, "default_new_tokens": 6, "choices": 3, "prompt_characters": 4096},
}
GONE = "Internal error from Core"
"""Message of gRPC's client where the server ended a stream while it wrote: the reason is lost."""
T = TypeVar("T")


def methods_of(file: Any, service: str) -> Sequence[MethodDescriptor]:
    return tuple(file.DESCRIPTOR.services_by_name[service].methods)


RPCS: Sequence[tuple[str, MethodDescriptor]] = (
    *(("target", method) for method in methods_of(target_pb2, "Target")),
    *(("drafter", method) for method in methods_of(drafter_pb2, "Drafter")),
    *(("sub-drafter", method) for method in methods_of(drafter_pb2, "Drafter")),
    *(("router", method) for method in methods_of(generation_pb2, "Generation")),
    *(("registry", method) for method in methods_of(registry_pb2, "Registry")),
)


class System:
    """Every service with simulated models, and a client of each, on its own event loop."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._held = AsyncExitStack()
        self.channels: Mapping[str, grpc.aio.Channel] = self.run(self._start(folder))
        self.num_tasks = self.run(self._settled(0))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def stop(self) -> None:
        self.run(self._held.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def loads(self) -> dict[str, common_pb2.Load]:
        """Return the load of each service."""
        return {name: self.run(self._load(name)) for name in self.channels.keys() - {"router", "registry"}}

    def settled(self) -> int:
        """Return the tasks of the loop once they are as few as at the start, or after a timeout."""
        return self.run(self._settled(self.num_tasks))

    async def _load(self, name: str) -> common_pb2.Load:
        service = "Target" if name == "target" else "Drafter"
        answer = await self.channels[name].unary_unary(f"/flyserve.v1.{service}/Info")(b"")
        return common_pb2.InfoResponse.FromString(answer).load

    async def _settled(self, at_most: int) -> int:
        end, number = time.monotonic() + (60.0 if at_most else 0.5), len(asyncio.all_tasks())
        while number > at_most and time.monotonic() < end:
            await asyncio.sleep(0.02)
            number = len(asyncio.all_tasks())
        return number

    async def _start(self, folder: Path) -> Mapping[str, grpc.aio.Channel]:
        suffix = parse(LOOKUPS, {"engine": "suffix"}, "test")
        helper = await self._serve(await create_sub_drafter(suffix))
        helped = {**SIMULATED, "sub_drafter": helper, "draft_ahead": "on"}
        drafter = await self._serve(await create_drafter(parse(DrafterConfig, helped, "test")))
        target = await self._serve(await create_target(parse(TargetConfig, SIMULATED, "test")))
        options = {**ROUTER, "model": save_tokenizer(folder), "targets": [target], "drafters": [drafter]}
        router = await self._serve(await create_router(parse(RouterConfig, options, "test")))
        self._registry = Registry()
        self._registry.publish((Endpoint(Role.TARGET, target, "target-0"),))
        registry = await self._serve(Host(registry_service(self._registry)))
        addresses = {
            "target": target,
            "drafter": drafter,
            "sub-drafter": helper,
            "router": router,
            "registry": registry,
        }
        channels = {name: grpc.aio.insecure_channel(address) for name, address in addresses.items()}
        for channel in channels.values():
            await self._held.enter_async_context(channel)
        return channels

    async def _serve(self, host: Host) -> str:
        await host.start()
        self._held.push_async_callback(host.drain, 0.0)
        return host.address


@contextlib.contextmanager
def running_system(folder: Path) -> Iterator[System]:
    made = System(folder)
    try:
        yield made
    finally:
        made.stop()


def check_anything_that_comes_in(
    system: System, name: str, method: MethodDescriptor, chosen: settings
) -> None:
    """Send as many batches of calls to one RPC as the settings have examples; check what they leave."""
    channel, genuine = system.channels[name], GENUINE[method.input_type.name]()
    before = system.run(call(channel, method, genuine))
    assert before is grpc.StatusCode.OK

    # Nobody has the weights that a request may ask for.
    clean = CLEAN | ({grpc.StatusCode.UNAVAILABLE} if name == "router" else set())

    @settings(chosen, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.binary(max_size=64), min_size=BATCH, max_size=BATCH))
    def send(cases: list[bytes]) -> None:
        all_requests = [requests_from(case, method.input_type, genuine) for case in cases]
        statuses = system.run(calls(channel, method, all_requests))
        for requests, status in zip(all_requests, statuses, strict=True):
            assert status in clean, (status, requests)

    send()
    assert system.settled() <= system.num_tasks
    assert {load.sequences for load in system.loads().values()} == {0}
    assert system.run(call(channel, method, genuine)) is grpc.StatusCode.OK


async def calls(
    channel: grpc.aio.Channel, method: MethodDescriptor, cases: Sequence[Sequence[bytes]]
) -> list[grpc.StatusCode]:
    return list(await asyncio.gather(*(call(channel, method, case) for case in cases)))


async def call(
    channel: grpc.aio.Channel, method: MethodDescriptor, requests: Sequence[bytes]
) -> grpc.StatusCode:
    """Return the status of one call; a watch ends after its first answer, a silent stream after a while."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    started = time.monotonic()
    try:
        if method.client_streaming:
            status = await exchange(channel.stream_stream(path)(timeout=TIMEOUT_S), requests)
        elif method.server_streaming:
            status = await take(channel.unary_stream(path)(b"".join(requests[:1]), timeout=TIMEOUT_S), method)
        else:
            await channel.unary_unary(path)(b"".join(requests[:1]), timeout=TIMEOUT_S)
            status = grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        status = grpc.StatusCode.OK if error.details() == GONE else error.code()
    assert time.monotonic() - started < TIMEOUT_S, (path, requests)
    return status


async def exchange(stream: Any, requests: Sequence[bytes]) -> grpc.StatusCode:
    """Says everything at once, then reads until the server has ended; one in eight breaks off.

    NOTE: where the server has ended before all is said, what it answered is still read, by iterating: gRPC
    keeps a call, and a task, until all its messages are read; `read` and `cancel` do nothing by then.
    """
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
        for request in requests:
            await stream.write(request)
        if sum(map(len, requests)) % 8 == 7:
            stream.cancel()
            return grpc.StatusCode.OK
        await stream.done_writing()
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in stream:
            pass
    status: grpc.StatusCode = await stream.code()
    return grpc.StatusCode.OK if await stream.details() == GONE else status


async def take(stream: Any, method: MethodDescriptor) -> grpc.StatusCode:
    async for _ in stream:
        if method.name == "Watch":
            stream.cancel()
            return grpc.StatusCode.OK
    status: grpc.StatusCode = await stream.code()
    return status


def conversation(make_step: Callable[[Any], Any], to_wire: Callable[[Any], Any]) -> list[bytes]:
    """Return a stream like a client's: a prompt, drafts, some of them rolled back, the end."""
    view, sequence = SequenceMirror(), TokenSequence()
    sequence.extend((40, 41, 42, 43))
    first = make_step(view.update(sequence, (), 4))
    second = make_step(view.update(sequence, (50, 51, 52), 4))
    sequence.extend((50, 60))
    third = make_step(view.update(sequence, (70,), 6))
    last = Close(view.update(sequence, (), 6))
    opening = Open("fuzzed", 4, SamplingParams(temperature=0.8, seed=7, top_k=20))
    return [to_wire(message).SerializeToString() for message in (opening, first, second, third, last)]


def verified() -> list[bytes]:
    return conversation(
        lambda update: VerifyStep(update, min(1, len(update.tokens) - 1)), verify_request_to_wire
    )


def drafted() -> list[bytes]:
    return conversation(lambda update: DraftStep(update, 4), draft_request_to_wire)


def asked() -> list[bytes]:
    speculation = {"preset": "flyserve", "draft_length": {"max": 4}}
    request = make_request(FLY, 8, speculation=speculation, stop=["zz"], n=2, logprobs=1)
    request.sampling.temperature = 0.7
    return [request.SerializeToString()]


def tokenized() -> list[bytes]:
    return [generation_pb2.TokenizeRequest(text="the quick brown fox").SerializeToString()]


GENUINE: Mapping[str, Callable[[], list[bytes]]] = {
    "InfoRequest": lambda: [b""],
    "ListRequest": lambda: [b""],
    "WatchRequest": lambda: [b""],
    "ReportRequest": lambda: [registry_pb2.ReportRequest(router="r", waiting=3).SerializeToString()],
    "VerifyRequest": verified,
    "DraftRequest": drafted,
    "GenerateRequest": asked,
    "TokenizeRequest": tokenized,
}
