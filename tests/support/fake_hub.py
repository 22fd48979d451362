"""A model hub on a socket: the calls that its client makes to list and download a model."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
LARGE = (".safetensors", ".gguf")
"""Files that are stored by the hash of their content."""
PARTS = tuple(f"big/a-UD-Q8_K_XL-0000{number}-of-00002.gguf" for number in (1, 2))
"""Names of the parts of one GGUF file."""
HANG_S = 120.0
"""Time limit of a request to it in seconds, which only ends a hang."""


@dataclass
class FakeHub:
    """One model, `org/name`, of which every revision but `gone` is the same commit.

    Attributes:
        files: Content by name.
        sent: What it sends instead of a file's content: a fault of the line or of a disk.
        fetched: Names of the files that were downloaded, in order.
        lost: Names of files that are listed, and that cannot be downloaded.
        cut: Set once a client has ended a download.
        commit: The commit that all revisions are.
        refuses: Status of every answer if it is not 0.
        silence: If set, an answer waits for this event, at most a minute.
        stalls: If set, the content of weights is sent once this event is.
    """

    files: dict[str, bytes]
    sent: dict[str, bytes] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    stalls: Event | None = None
    cut: Event = field(default_factory=Event)
    lost: set[str] = field(default_factory=set)
    commit: str = COMMIT
    refuses: int = 0
    silence: Event | None = None
    url: str = ""

    def listing(self) -> dict[str, Any]:
        return {
            "id": "org/name",
            "sha": self.commit,
            "siblings": [self._sibling(name) for name in self.files],
        }

    def tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": each["rfilename"], "size": each["size"], "oid": each["blobId"]}
            | ({"lfs": {**each["lfs"], "oid": each["lfs"]["sha256"]}} if "lfs" in each else {})
            for each in map(self._sibling, self.files)
        ]

    def etag(self, name: str) -> str:
        content = self.files[name]
        if name.endswith(LARGE):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()

    def _sibling(self, name: str) -> dict[str, Any]:
        size = len(self.files[name])
        if name.endswith(LARGE):
            large = {"size": size, "sha256": self.etag(name), "pointerSize": 134}
            return {"rfilename": name, "size": size, "blobId": "0" * 40, "lfs": large}
        return {"rfilename": name, "size": size, "blobId": self.etag(name)}


@contextmanager
def fake_hub(files: dict[str, bytes]) -> Iterator[FakeHub]:
    """Serve a hub while the block runs."""
    hub = FakeHub(files)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

        def _answer(self, with_body: bool) -> None:
            if hub.silence is not None:
                hub.silence.wait(60)
            if hub.refuses:
                return self._send(b"{}", {}, with_body, status=hub.refuses)
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            match parts:
                case ["api", "models", "org", "name", "revision", *revision] if revision != ["gone"]:
                    return self._send(json.dumps(hub.listing()).encode(), {}, with_body)
                case ["api", "models", "org", "name", "tree", _]:
                    return self._send(json.dumps(hub.tree()).encode(), {}, with_body)
                case ["org", "name", "resolve", commit, *path] if (
                    commit == hub.commit and (name := "/".join(path)) in {*hub.files} - hub.lost
                ):
                    if with_body:
                        hub.fetched.append(name)
                    if with_body and hub.stalls is not None and name.endswith(LARGE):
                        hub.stalls.wait()
                    headers = {"ETag": f'"{hub.etag(name)}"', "X-Repo-Commit": hub.commit}
                    return self._send(hub.sent.get(name, hub.files[name]), headers, with_body)
                case ["org", "name", "resolve", *_]:
                    return self._send(b"{}", {"X-Error-Code": "EntryNotFound"}, with_body, status=404)
            missing = "RevisionNotFound" if "gone" in parts else "RepoNotFound"
            self._send(b"{}", {"X-Error-Code": missing}, with_body, status=404)

        def _send(self, body: bytes, headers: dict[str, str], with_body: bool, status: int = 200) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            try:
                self.end_headers()
                self.wfile.write(body if with_body else b"")
            except ConnectionError:
                hub.cut.set()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
