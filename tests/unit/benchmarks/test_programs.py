"""Programs of others as peers; llama.cpp's server is played by a program that speaks its HTTP API."""

import sys
from pathlib import Path

import pytest

from benchmarks.harness.program import named_python, running
from benchmarks.scenarios.peers.llama_cpp import llama_cpp
from flyserve.core.errors import ConfigError, NotReady

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from benchmarks.harness.program import serve

class Api(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/completion" and asked["temperature"] == 0 and not asked["cache_prompt"]
        tokens = [token + 1 for token in asked["prompt"]][: asked["n_predict"]]
        stop = "limit" if len(tokens) == asked["n_predict"] else "eos"
        self.send_response(200 if tokens else 400)
        self.end_headers()
        self.wfile.write(json.dumps({"tokens": tokens, "stop_type": stop}).encode())

    def log_message(self, *_):
        pass

assert sys.argv[2:] == ["2", "ngram-mod"]

def start():
    server = HTTPServer(("127.0.0.1", 0), Api)
    Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}", None

serve(start)
"""
ADDING = """
from benchmarks.harness.program import serve
print("a library prints this")
serve(lambda: (print("and this") or "adder", lambda one, other: one + other))
"""


def script(folder: Path, text: str) -> Path:
    file = folder / "played.py"
    file.write_text(text)
    return file


def test_a_response_has_its_stop_token_as_in_the_other_engines(tmp_path: Path) -> None:
    with llama_cpp(tmp_path / "m.gguf", 2, "ngram-mod", (99,), script(tmp_path, SERVER)) as peer:
        limited, ended = peer.decode((1, 2, 3), 3), peer.decode((1, 2), 3)
        with pytest.raises(NotReady, match=r"llama.cpp's server answers 400: .*tokens"):
            peer.decode((), 3)
    assert limited.tokens == (2, 3, 4) and ended.tokens == (2, 3, 99)
    assert limited.seconds > 0 and limited.tau is None


def test_a_program_answers_or_names_its_fault_and_what_it_prints_is_no_answer(tmp_path: Path) -> None:
    text = ADDING.replace('print("a library prints this")\n', "")
    with running(sys.executable, script(tmp_path, text)) as program:
        assert program.word == "adder" and program.ask(one=1, other=2) == 3
        with pytest.raises(NotReady, match=r"played.py failed: TypeError: unsupported operand"):
            program.ask(one=1, other=None)
        assert program.ask(one="a", other="b") == "ab"


def test_a_program_that_ends_is_named_with_its_last_line(tmp_path: Path) -> None:
    failing = script(tmp_path, "raise SystemExit('no such model')")
    with (
        pytest.raises(NotReady, match=r"played.py ended before it was ready; it printed last: no such model"),
        running(sys.executable, failing),
    ):
        pass
    text = "import os\nfrom benchmarks.harness.program import serve\nserve(lambda: ('', lambda: os._exit(3)))"
    with running(sys.executable, script(tmp_path, text)) as program:
        with pytest.raises(NotReady, match=r"has ended; it printed last: it printed nothing"):
            program.ask()
        with pytest.raises(NotReady, match="has ended"):
            program.ask()


def test_an_interpreter_is_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANY_PYTHON", raising=False)
    assert named_python("ANY_PYTHON") is None
    monkeypatch.setenv("ANY_PYTHON", sys.executable)
    assert named_python("ANY_PYTHON") == sys.executable
    monkeypatch.setenv("ANY_PYTHON", f"{tmp_path}/none")
    with pytest.raises(ConfigError, match=f"ANY_PYTHON: {tmp_path}/none is not a program"):
        named_python("ANY_PYTHON")
