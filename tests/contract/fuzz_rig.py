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

from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Close, DraftStep, Load, Open, Role, VerifyStep
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceMirror, TokenSequence
from flyserve.v1 import drafter_pb2, generation_pb2, registry_pb2, target_pb2
from flyserve.wire.streams import draft_request_to_wire, verify_request_to_wire
from orchestration.control.registry import Registry, registry_service
from services.common.host import Host
from tests.contract.fakes import save_tokenizer
from tests.contract.router_rig import FLY, make_request
from tests.contract.system_rig import INSTANT, info_of, whole_system
from tests.support.serving import serving
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
SIMULATED = {"simulated": {**INSTANT, "vocab_size": 304}, "kv_tokens": 16_384}
ROUTER = {
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
    *(("sub_drafter", method) for method in methods_of(drafter_pb2, "Drafter")),
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
        # A stream that all sequences of a client share stays open after the first of them.
        for name, method in RPCS:
            self.run(call(self.channels[name], method, GENUINE[method.input_type.name]()))
        self.num_tasks = self.run(self._settled(0))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def stop(self) -> None:
        self.run(self._held.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def loads(self) -> dict[str, Load]:
        """Return the load of each service."""
        return {name: self.run(self._load(name)) for name in self.channels.keys() - {"router", "registry"}}

    def settled(self) -> int:
        """Return the tasks of the loop once they are as few as at the start, or after a timeout."""
        return self.run(self._settled(self.num_tasks))

    async def _load(self, name: str) -> Load:
        return (await info_of(self.channels[name], "Target" if name == "target" else "Drafter"))[1]

    async def _settled(self, at_most: int) -> int:
        end, number = time.monotonic() + (60.0 if at_most else 0.5), len(asyncio.all_tasks())
        while number > at_most and time.monotonic() < end:
            await asyncio.sleep(0.02)
            number = len(asyncio.all_tasks())
        return number

    async def _start(self, folder: Path) -> Mapping[str, grpc.aio.Channel]:
        helped = {**SIMULATED, "draft_ahead": "on"}
        system = whole_system(save_tokenizer(folder), drafter=helped, target=SIMULATED, router=ROUTER)
        hosts = await self._held.enter_async_context(system)
        registry = Registry()
        registry.publish((Endpoint(Role.TARGET, hosts["target"].address, "target-0"),))
        hosts["registry"] = host = Host(registry_service(registry))
        await self._held.enter_async_context(serving(host))
        channels = {role: grpc.aio.insecure_channel(host.address) for role, host in hosts.items()}
        for channel in channels.values():
            await self._held.enter_async_context(channel)
        return channels


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
        lambda update: VerifyStep(update, min(1, len(update.tokens) - 1)),
        lambda message: target_pb2.VerifyRequests(requests=[verify_request_to_wire(message)]),
    )


def drafted() -> list[bytes]:
    return conversation(
        lambda update: DraftStep(update, 4),
        lambda message: drafter_pb2.DraftRequests(requests=[draft_request_to_wire(message)]),
    )


def asked() -> list[bytes]:
    speculation = {"preset": "flyserve", "draft_length": {"max": 4}}
    request = make_request(FLY, 8, speculation=speculation, stop=["zz"], n=2, logprobs=1)
    request.sampling.temperature = 0.7
    return [request.SerializeToString()]


def tokenized() -> list[bytes]:
    return [generation_pb2.TokenizeRequest(text="the quick brown fox").SerializeToString()]


GENUINE: Mapping[str, Callable[[], list[bytes]]] = {
    "InfoRequest": lambda: [b""],
    "WatchRequest": lambda: [b""],
    "ReportRequest": lambda: [registry_pb2.ReportRequest(router="r", waiting=3).SerializeToString()],
    "VerifyRequests": verified,
    "DraftRequests": drafted,
    "GenerateRequest": asked,
    "TokenizeRequest": tokenized,
}
