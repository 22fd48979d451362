"""The router's command line: ready, drain, one line per error; and the modules that it imports."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from protos.flyserve.v1.generation_pb2_grpc import GenerationStub
from services.common.channel import open_channel
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, ids, make_request
from tests.support.serving import serving

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240


@contextmanager
def router(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a router that begins with a low limit of open files."""
    command = ["sh", "-c", 'ulimit -S -n 256 && exec "$0" -m router "$@"', sys.executable, *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def read_ready(process: subprocess.Popen[str]) -> str:
    return (await read_addresses(process))[0]


async def read_addresses(process: subprocess.Popen[str]) -> list[str]:
    """Return the addresses: gRPC, then HTTP if it has a port."""
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        word, *addresses = (await asyncio.to_thread(process.stdout.readline)).split()
    assert word == "ready"
    return addresses


async def rejected(*arguments: str) -> str:
    """Return the one line that a failed start prints."""
    with router(*arguments) as process:
        _, errors = await asyncio.to_thread(process.communicate, None, TIMEOUT_S)
        assert process.returncode == 2
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert errors.rstrip().endswith(line) and "Traceback" not in errors
    return line


async def test_it_serves_until_told_to_stop_and_rejects_a_port_in_use(tmp_path: Path) -> None:
    model = str(save_tokenizer(tmp_path))
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel(agreement=0.9))
    async with serving(target.host) as one, serving(drafter.host) as two:
        flags = ("--model", model, "--target", one, "--drafter", two)
        with router(*flags, "--grpc-port", "0") as process:
            address = await read_ready(process)
            async with open_channel(address) as channel:
                stub = GenerationStub(channel)
                plain, exact = [await stub.Generate(make_request(mode, 20)) for mode in (PLAIN, EXACT)]
            assert ids(plain.choices[0]) == ids(exact.choices[0])
            soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            assert soft == hard
            port = address.rpartition(":")[2]
            assert f"{address} is in use" in await rejected(*flags, "--grpc-port", port)
            process.send_signal(signal.SIGTERM)
            _, log = await asyncio.to_thread(process.communicate, None, TIMEOUT_S)
            assert process.returncode == 0 and f"and may open {hard} files" in log


async def test_a_stop_lets_http_streams_finish_but_not_for_ever(tmp_path: Path) -> None:
    model, target, release = save_tokenizer(tmp_path), FakeTarget(HashModel()), asyncio.Event()

    async def wait(step: int) -> None:
        if step > 3:
            await release.wait()

    target.script = wait
    body = {"model": tmp_path.name, "prompt": "the fox", "max_tokens": 9, "stream": True}
    async with serving(target.host) as address:
        flags = ("--model", str(model), "--target", address, "--grpc-port", "0", "--http-port", "0")
        for finishes in (True, False):
            release.clear()
            target.num_steps = 0
            with router(*flags) as process:
                _, url = await read_addresses(process)
                async with httpx2.AsyncClient(timeout=TIMEOUT_S) as http:
                    request = http.build_request("POST", f"{url}/v1/completions", json=body)
                    response = await http.send(request, stream=True)
                    assert response.status_code == 200, await response.aread()
                    lines = response.aiter_lines()
                    await anext(lines)
                    process.send_signal(signal.SIGTERM)
                    with pytest.raises(httpx2.TransportError):
                        while True:
                            await http.get(f"{url}/version")
                    if finishes:
                        release.set()
                        assert [line async for line in lines if line][-1] == "data: [DONE]"
                    else:
                        process.send_signal(signal.SIGTERM)
                        with pytest.raises(httpx2.RemoteProtocolError):
                            [line async for line in lines]
                assert await asyncio.to_thread(process.wait, TIMEOUT_S) == 0
            await asyncio.wait_for(target.all_closed.wait(), TIMEOUT_S)


async def test_an_http_port_in_use_is_one_line(tmp_path: Path) -> None:
    model, target = save_tokenizer(tmp_path), FakeTarget(HashModel())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with serving(target.host) as address:
            flags = ("--model", str(model), "--target", address, "--grpc-port", "0")
            assert f"http_port: 127.0.0.1:{port} is in use" in await rejected(
                *flags, "--http-port", str(port)
            )


async def test_a_configuration_file_serves_as_well(tmp_path: Path) -> None:
    model, target = save_tokenizer(tmp_path), FakeTarget(HashModel())
    async with serving(target.host) as address:
        file = tmp_path / "router.yaml"
        file.write_text(
            f"model: {model}\ntargets: ['{address}']\ngrpc_port: 1\nlimits: {{draft_length: 20}}\n"
        )
        with router("--config", str(file), "--grpc-port", "0") as process:
            assert await read_ready(process)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--model", "nowhere", "--target", "127.0.0.1:1"), "nowhere: has no tokenizer.json"),
        (("--target", "127.0.0.1:1"), "model"),
        (("--model", "nowhere"), "neither registry nor targets"),
        (
            ("--model", "x", "--target", "127.0.0.1:1", "--balancing", "magic"),
            "'prefix_affinity', 'least_load', 'power_of_two' or 'round_robin'",
        ),
        (("--config", "missing.yaml"), "missing.yaml"),
    ],
)
async def test_a_bad_start_is_one_line(arguments: tuple[str, ...], part: str) -> None:
    assert part in await rejected(*arguments)


def test_importing_the_router_loads_neither_torch_nor_ray_nor_what_only_traces_need(tmp_path: Path) -> None:
    program = """
import sys, pathlib
import router.__main__, router.server, router.text.chat_template, router.text.tokenizer
folder = pathlib.Path(sys.argv[1])
(folder / "chat.jinja").write_text("{{ messages[0].content }}")
tokenizer = router.text.tokenizer.Tokenizer.load(folder)
template = router.text.chat_template.ChatTemplate(tokenizer, folder / "chat.jinja")
template.render([{"role": "user", "content": "hello"}], {})
print([name for name in ("torch", "ray", "opentelemetry") if name in sys.modules])
"""
    command = [sys.executable, "-c", program, str(save_tokenizer(tmp_path))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout.strip() == "[]"
