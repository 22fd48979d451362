"""As much of Kubernetes' API as helm's `lookup` needs: discovery, lists, and objects by name."""

import json
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_KINDS = {
    "ray.io/v1": ("RayCluster",),
    "apps/v1": ("Deployment",),
    "v1": ("PersistentVolumeClaim", "ResourceQuota", "LimitRange"),
    "apiextensions.k8s.io/v1": ("CustomResourceDefinition",),
}
_CLUSTER_SCOPED = ("CustomResourceDefinition",)

Manifest = dict[str, Any]


@contextmanager
def kubernetes_api(
    objects: Sequence[Manifest], namespace: str, forbidden: Collection[str] = ()
) -> Iterator[str]:
    """Serve these objects of a namespace; yield the URL of the API server. Forbidden kinds answer 403."""
    answers = _answers(objects, namespace)
    refused = tuple(map(_plural, forbidden))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            status = HTTPStatus.OK if path in answers else HTTPStatus.NOT_FOUND
            if any(f"/{plural}" in path for plural in refused):
                status = HTTPStatus.FORBIDDEN
            body = json.dumps(answers[path] if status is HTTPStatus.OK else _error(status)).encode()
            self.send_response(status)
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


def _answers(objects: Sequence[Manifest], namespace: str) -> dict[str, Manifest]:
    """Return the answers by path."""
    answers = {}
    for version, kinds in _KINDS.items():
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resources = [*map(_resource, kinds)]
        answers[root] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        for kind in kinds:
            place = root if kind in _CLUSTER_SCOPED else f"{root}/namespaces/{namespace}"
            found = [each for each in objects if each["kind"] == kind]
            place = f"{place}/{_plural(kind)}"
            answers[place] = {"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": found}
            answers |= {f"{place}/{each['metadata']['name']}": each for each in found}
    return answers


def _resource(kind: str) -> Manifest:
    return {
        "name": _plural(kind),
        "kind": kind,
        "namespaced": kind not in _CLUSTER_SCOPED,
        "verbs": ["get", "list"],
    }


def _plural(kind: str) -> str:
    return f"{kind.lower()}s"


def _error(status: HTTPStatus) -> Manifest:
    reason = status.phrase.title().replace(" ", "")
    about = {"status": "Failure", "code": int(status), "reason": reason, "message": status.phrase.lower()}
    return {"kind": "Status", "apiVersion": "v1", **about}
