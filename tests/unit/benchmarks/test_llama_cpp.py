"""llama.cpp's server as a peer, played by a program that speaks its HTTP API."""

import sys
from pathlib import Path

import pytest

from benchmarks.scenarios.peers.llama_cpp import llama_cpp
from flyserve.core.errors import ConfigError, NotReady

SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Api(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/completion" and asked["temperature"] == 0 and not asked["cache_prompt"]
        tokens = [token + 1 for token in asked["prompt"]][: asked["n_predict"]]
        stop = "limit" if len(tokens) == asked["n_predict"] else "eos"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({{"tokens": tokens, "stop_type": stop}}).encode())

    def log_message(self, *_):
        pass

flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert flags["-t"] == flags["-np"] == "1"
HTTPServer((flags["--host"], int(flags["--port"])), Api).serve_forever()
"""


def program(folder: Path, text: str) -> Path:
    file = folder / "llama-server"
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_a_response_has_its_stop_token_as_in_the_other_engines(tmp_path: Path) -> None:
    server = program(tmp_path, SERVER.format(python=sys.executable))
    with llama_cpp(server, tmp_path / "model.gguf", (99,)) as peer:
        limited, ended = peer.decode((1, 2, 3), 3), peer.decode((1, 2), 3)
    assert limited.tokens == (2, 3, 4) and ended.tokens == (2, 3, 99)
    assert limited.seconds > 0 and limited.tau is None


def test_a_server_that_ends_is_named_with_its_last_line(tmp_path: Path) -> None:
    server = program(tmp_path, "#!/bin/sh\necho no such model\nexit 3\n")
    ended = pytest.raises(NotReady, match=r"ended with status 3; it printed last: no such model")
    with ended, llama_cpp(server, tmp_path / "model.gguf", (99,)):
        pass


def test_a_path_without_a_program_is_rejected(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="is not a program"), llama_cpp(path, path, ()):
            pass
