"""As much of Kubernetes' API as helm's `lookup` of RayClusters needs: discovery, and one list."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_GROUP = "/apis/ray.io/v1"
_KIND = {"name": "rayclusters", "kind": "RayCluster", "namespaced": True, "verbs": ["get", "list"]}


@contextmanager
def ray_cluster_api(clusters: Sequence[dict[str, Any]], namespace: str) -> Iterator[str]:
    """Serve these RayClusters of a namespace; yield the URL of the API server."""
    answers = {
        _GROUP: {"kind": "APIResourceList", "groupVersion": "ray.io/v1", "resources": [_KIND]},
        f"{_GROUP}/namespaces/{namespace}/rayclusters": {
            "kind": "RayClusterList",
            "apiVersion": "ray.io/v1",
            "metadata": {},
            "items": list(clusters),
        },
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            body = json.dumps(found or {"kind": "Status", "code": 404, "reason": "NotFound"}).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing: the test reports."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
