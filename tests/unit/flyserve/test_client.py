import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flyserve import ChatMessage, Client, DraftLength, SamplingParams, SpeculationParams, Token
from flyserve.core.errors import (
    ConfigError,
    FlyServeError,
    InvalidRequest,
    NotReady,
    Overloaded,
)
from flyserve.core.request import GenerateRequest
from flyserve.core.types import Coupling, EntropyEstimator, FinishReason, Mode, TailPolicy, Verdict
from flyserve.retries import RetryPolicy
from flyserve.v1 import generation_pb2 as pb
from flyserve.wire.generation import request_from_wire
from tests.unit.flyserve.fake_generation import STATISTICS, FakeGeneration, fake_generation, rejected_address


@pytest.fixture
def served() -> Iterator[tuple[FakeGeneration, Client]]:
    with fake_generation() as (service, address), Client(address) as client:
        yield service, client


def test_generate_returns_tokens_with_their_verdicts(served: tuple[FakeGeneration, Client]) -> None:
    response = served[1].generate("hello")
    assert response.text == "the quick fox"
    assert response.tokens[1] == Token(2, Verdict.RESCUED, 7, 1.5, " quick", " slow")
    assert response.finish_reason is FinishReason.STOP_TOKEN
    assert (response.statistics.tau, response.statistics.rescued) == (STATISTICS.tau, STATISTICS.rescued)
    assert response.warnings == ("short context",)


def test_what_is_said_arrives_and_nothing_else(served: tuple[FakeGeneration, Client]) -> None:
    service, client = served
    said = GenerateRequest(
        prompt=(4, 5),
        max_new_tokens=9,
        sampling=SamplingParams(0.5, seed=0, logit_bias={5: -1.5}, coupling=Coupling.REJECTION),
        speculation=SpeculationParams(
            mode=Mode.FLY,
            preset="vllm",
            draft_length=DraftLength(0),
            sub_drafter=False,
            tail=TailPolicy.CARRY,
            carry_after=0,
            guard_stops=False,
            entropy=EntropyEstimator.NORMALIZED,
        ),
        stop=("\n",),
        cache_salt="tenant",
        request_id="mine",
    )
    client.generate(
        [4, 5], 9, said.sampling, said.speculation, stop=["\n"], cache_salt="tenant", request_id="mine"
    )
    client.generate("hello")
    first, second = service.requests
    assert request_from_wire(first) == said and service.metadata[0]["x-request-id"] == "mine"
    assert request_from_wire(second) == GenerateRequest(prompt="hello", request_id=second.request_id)
    assert service.metadata[1]["x-request-id"] == second.request_id != ""
    assert not second.HasField("max_new_tokens") and second.speculation.mode == pb.MODE_UNSPECIFIED


def test_every_choice_is_told(served: tuple[FakeGeneration, Client]) -> None:
    response = served[1].generate("hello", n=3, logprobs=0)
    assert [choice.index for choice in response.choices] == [0, 1, 2]
    assert response.choices[0].text == response.text
    assert (served[0].requests[0].n, served[0].requests[0].HasField("logprobs")) == (3, True)


MESSAGES = [{"role": "system", "content": "Be brief."}, ChatMessage("user", "Hello")]


def test_a_chat_is_answered_from_the_prompt_of_the_template(served: tuple[FakeGeneration, Client]) -> None:
    service, client = served
    assert client.chat(MESSAGES, temperature=0.5).text == "the quick fox"
    assert "".join(chunk.text for chunk in client.stream_chat("Hello", n=1)) == "the quick fox"
    first, second = (request_from_wire(request) for request in service.requests)
    templated = tuple(token.id for token in client.tokenize([ChatMessage("user", "Hello")]))
    assert first.sampling.temperature == 0.5 and second.prompt == templated
    assert first.prompt == (2,)
    assert service.conversations[0] == [("system", "Be brief."), ("user", "Hello")]
    with pytest.raises(InvalidRequest, match=r"messages\[0\] must have role and content"):
        client.chat([{"role": "user", "text": "Hello"}])


def test_a_person_sees_what_a_client_does(served: tuple[FakeGeneration, Client]) -> None:
    public = {name for name in dir(served[1]) if not name.startswith("_")}
    assert public == {"chat", "close", "generate", "info", "stream", "stream_chat", "tokenize"}


def test_the_address_is_that_of_the_environment(
    served: tuple[FakeGeneration, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYSERVE_ADDRESS", f"{rejected_address()} {client_address(served[1])}")
    with Client() as client:
        assert client.generate("hello").text == "the quick fox"
    monkeypatch.delenv("FLYSERVE_ADDRESS")
    assert client_address(Client()) == "127.0.0.1:50051"
    with pytest.raises(ConfigError, match="address: is"):
        Client("")


def test_an_error_has_no_other_error_behind_it() -> None:
    with Client(rejected_address(), retries=0) as client:
        for ask in (client.generate, client.chat, lambda prompt: list(client.stream(prompt))):
            with pytest.raises(NotReady) as raised:
                ask("hello")
            assert raised.value.__cause__ is None and raised.value.__context__ is None


def test_stream_yields_chunks_as_they_come(served: tuple[FakeGeneration, Client]) -> None:
    stream = served[1].stream("hello")
    first, last = stream
    assert (first.text, first.request_id, first.prompt_tokens) == ("the quick", "r1", 5)
    assert (first.finish_reason, first.statistics) == (None, None)
    assert last.finish_reason is FinishReason.STOP_TOKEN
    assert last.statistics is not None
    response = stream.response
    assert (response.text, response.statistics, response.resumed) == ("the quick fox", last.statistics, 0)
    assert response.warnings == ("short context",)


@pytest.mark.parametrize("leave", ["close", "with", "forget"])
def test_leaving_a_stream_cancels_it(served: tuple[FakeGeneration, Client], leave: str) -> None:
    service, client = served
    chunks = client.stream("endless")
    next(chunks)
    if leave == "close":
        chunks.close()
    elif leave == "with":
        with chunks:
            pass
    else:
        del chunks
    assert service.has_ended.wait(240)


def test_another_thread_may_close_a_stream(served: tuple[FakeGeneration, Client]) -> None:
    chunks = served[1].stream("endless")
    assert next(chunks).text == "the quick"
    threading.Timer(0.01, chunks.close).start()
    assert list(chunks) == [] and chunks.response.text == "the quick"


def test_a_stream_that_another_thread_closes_while_it_opens_has_no_chunk(
    served: tuple[FakeGeneration, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = served[1].stream("endless")
    opened = stream._open

    def opened_and_closed() -> Any:
        call = opened()
        stream.close()
        return call

    monkeypatch.setattr(stream, "_open", opened_and_closed)
    assert list(stream) == []


def test_closing_the_client_ends_the_wait_for_a_retry(
    served: tuple[FakeGeneration, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, errors = threading.Event(), list[str]()

    def an_hour(*_: Any) -> float:
        waits.set()
        return 3600.0

    def ask() -> None:
        try:
            served[1].generate("full")
        except FlyServeError as error:
            errors.append(str(error))

    monkeypatch.setattr(RetryPolicy, "next_delay_s", an_hour)
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert waits.wait(240)
    served[1].close()
    asking.join(60)
    assert errors == ["the client is closed"]


def test_a_rejection_names_the_field(served: tuple[FakeGeneration, Client]) -> None:
    with pytest.raises(InvalidRequest) as error:
        served[1].generate("bad")
    assert error.value.violations[0].field == "max_new_tokens"
    assert str(error.value) == "max_new_tokens is 9000, must be at most 4096"


def test_overload_says_when_to_try_again(served: tuple[FakeGeneration, Client]) -> None:
    with pytest.raises(Overloaded) as error:
        list(served[1].stream("full", timeout_s=2))
    assert error.value.retry_after_s == 2.5


@pytest.mark.parametrize("prompt", ["busy", "away"])
def test_a_server_that_is_full_or_away_for_a_while_is_asked_again(
    served: tuple[FakeGeneration, Client], prompt: str
) -> None:
    service, client = served
    for ask in (client.generate, lambda prompt: list(client.stream(prompt))):
        service.rejections_left = 2
        assert ask(prompt)
    ids = [request.request_id for request in service.requests]
    assert len(ids) == 6 and len(set(ids)) == 2


def test_retries_are_bounded(served: tuple[FakeGeneration, Client]) -> None:
    service, client = served
    service.rejections_left = 10
    with pytest.raises(NotReady, match="no target"):
        client.generate("away")
    assert service.rejections_left == 6
    with Client(client_address(client), retries=0) as other, pytest.raises(Overloaded):
        other.generate("busy")
    assert service.rejections_left == 5


def test_the_next_address_takes_over(served: tuple[FakeGeneration, Client]) -> None:
    with Client([rejected_address(), client_address(served[1])]) as client:
        assert client.generate("hello").text == "the quick fox"
        assert client.tokenize("the")
    with pytest.raises(FlyServeError, match="the client is closed"):
        client.generate("hello")


def client_address(client: Client) -> str:
    return client._connection.addresses[0]


def test_importing_the_command_line_loads_neither_torch_nor_ray() -> None:
    code = "import sys, flyserve.cli; sys.exit(int(bool({'torch', 'ray'} & set(sys.modules))))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_package_alone_loads_nothing_slow() -> None:
    """The command line cannot handle a signal before."""
    code = "import sys, flyserve; sys.exit(int('grpc' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_client_imports_nothing_of_the_system_but_the_protocol_and_the_core() -> None:
    code = "import sys; from flyserve import *; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    ours = {"flyserve", "protos", "router", "services", "orchestration", "benchmarks", "demo"}
    unwanted = {"torch", "ray", "transformers", "pydantic", "typer", "rich", "numpy", "yaml", "grpc_status"}
    assert set(loaded.stdout.split()) & (ours | unwanted) == {"flyserve"}


class InterruptedCall:
    """A call that is interrupted where gRPC waits: the wait has released the lock that is left then."""

    def __next__(self) -> None:
        lock = threading.RLock()
        with lock:
            lock.release()
            raise KeyboardInterrupt

    def cancel(self) -> None:
        pass


def test_an_interrupt_within_grpcs_own_lock_is_an_interrupt(
    served: tuple[FakeGeneration, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="un-acquired lock"):
        next(InterruptedCall())
    stream = served[1].stream("hello")
    monkeypatch.setattr(stream, "_open", InterruptedCall)
    with pytest.raises(KeyboardInterrupt):
        next(stream)


CONNECTED = {
    "client": "from flyserve import Client; Client(ADDRESS).generate('hello')",
    "service": (
        "import asyncio; from services.common.channel import open_channel\n"
        "async def connect(): await open_channel(ADDRESS).channel_ready()\n"
        "asyncio.run(connect())"
    ),
}


@pytest.mark.parametrize("script", CONNECTED.values(), ids=CONNECTED)
def test_a_proxy_is_not_asked_for_this_machine_or_between_services(script: str) -> None:
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), f"http://{rejected_address()}")
    without = dict.fromkeys(("no_proxy", "NO_PROXY"), "")
    with fake_generation() as (_, address):
        command = [sys.executable, "-c", script.replace("ADDRESS", repr(address))]
        subprocess.run(command, env=os.environ | proxies | without, check=True, timeout=240)
