"""Command lines: a router that is ready and drained, one line per bad start; the modules of a router."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import httpx2
import pytest

from flyserve.v1.generation_pb2_grpc import GenerationStub
from services.common.channel import open_channel
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, closed, held, save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, ids, make_request
from tests.support.serving import serving
from tests.support.tiny_models import change_config, make_tiny

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


async def rejected(*command: str) -> str:
    """Return the one line that a failed start prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command), cwd=ROOT, env=environment, stdout=PIPE, stderr=PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert (process.returncode, output) == (2, b"") and b"Traceback" not in errors
    line = errors.decode().splitlines()[-1]
    assert errors.count(b"error: ") == 1 and line.startswith("error: ")
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
            assert f"{address} is in use" in await rejected("-m", "router", *flags, "--grpc-port", port)
            process.send_signal(signal.SIGTERM)
            _, log = await asyncio.to_thread(process.communicate, None, TIMEOUT_S)
            assert process.returncode == 0 and f"and may open {hard} files" in log


async def test_a_stop_lets_http_streams_finish_but_not_for_ever(tmp_path: Path) -> None:
    model, target = save_tokenizer(tmp_path), FakeTarget(HashModel())
    release = held(target, first=4)
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
            await closed(target)


async def test_an_http_port_in_use_is_one_line(tmp_path: Path) -> None:
    model, target = save_tokenizer(tmp_path), FakeTarget(HashModel())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with serving(target.host) as address:
            flags = ("--model", str(model), "--target", address, "--grpc-port", "0")
            line = await rejected("-m", "router", *flags, "--http-port", str(port))
    assert f"http_port: 127.0.0.1:{port} is in use" in line


async def test_a_configuration_file_serves_as_well(tmp_path: Path) -> None:
    model, target = save_tokenizer(tmp_path), FakeTarget(HashModel())
    async with serving(target.host) as address:
        file = tmp_path / "router.yaml"
        file.write_text(
            f"model: {model}\ntargets: ['{address}']\ngrpc_port: 1\nlimits: {{draft_length: 20}}\n"
        )
        with router("--config", str(file), "--grpc-port", "0") as process:
            assert await read_ready(process)


ABSENT = "org/absent@main is not on this machine, and the model hub cannot be reached"
BAD_STARTS = {
    "-m router --model nowhere --target 127.0.0.1:1": "nowhere: has no tokenizer.json",
    "-m router --model org/absent@main --target 127.0.0.1:1": f"error: {ABSENT}",
    "-m router --config missing.yaml": "missing.yaml",
    "-m flyserve up FOLDER/deployment.yaml": f"error: {ABSENT}",
    "-m services.target --model FOLDER": "FOLDER: llama quantized with gptq is not supported: use the",
    '-m services.lookup --telemetry {"metrics_prot":1}': "did you mean 'metrics_port'?",
}


async def test_a_bad_start_is_one_line(tmp_path: Path) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    change_config(tmp_path, quantization_config={"quant_method": "gptq"})
    deployment = {"target": {"model": "org/absent@main"}, "router": {"grpc_port": 0}}
    (tmp_path / "deployment.yaml").write_text(json.dumps(deployment))
    for line, part in BAD_STARTS.items():
        found = await rejected(*line.replace("FOLDER", str(tmp_path)).split())
        assert part.replace("FOLDER", str(tmp_path)) in found, line


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
