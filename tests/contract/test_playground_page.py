"""The playground over HTTP: the page, its files, and their security headers."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from flyserve.core.presets import PRESETS
from router.http.playground import routes
from tests.contract.http_rig import HttpRig, error_of, serving_http

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATIC = Path(routes.__file__).parent / "static"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving_http(tmp_path_factory.mktemp("model")) as rig:
        yield rig


def check_guards(response: httpx2.Response) -> None:
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"


async def test_the_page_is_at_the_root(served: HttpRig) -> None:
    response = await served.http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text == (STATIC / "index.html").read_text(encoding="utf-8")
    check_guards(response)
    assert (await served.http.head("/")).status_code == 200


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".js", "javascript"), (".css", "text/css"), (".svg", "image/svg+xml")]
)
async def test_its_files_have_their_types_and_are_not_sent_twice(
    served: HttpRig, suffix: str, kind: str
) -> None:
    files = list(STATIC.glob(f"*{suffix}"))
    assert files
    for file in files:
        path = f"/playground/{file.name}"
        response = await served.http.get(path)
        assert response.content == file.read_bytes()
        assert kind in response.headers["content-type"]
        check_guards(response)
        again = await served.http.get(path, headers={"If-None-Match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


async def test_the_page_learns_presets_defaults_and_limits(served: HttpRig) -> None:
    response = await served.http.get("/playground/settings.json")
    assert set(response.json()) == {"presets", "defaults", "limits", "is_demo", "has_chat_template"}
    assert set(response.json()["presets"]) == set(PRESETS)
    check_guards(response)


@pytest.mark.parametrize("path", ["none.js", "../routes.py", "%2e%2e/routes.py", "", "a%00b", "x" * 5000])
async def test_nothing_else_is_served(served: HttpRig, path: str) -> None:
    response = await served.http.get(f"/playground/{path}")
    assert response.status_code == 404
    error_of(response)


async def test_the_page_takes_no_requests(served: HttpRig) -> None:
    for path in ("/", "/playground/main.js"):
        response = await served.http.post(path)
        assert response.status_code == 405
        error_of(response)
