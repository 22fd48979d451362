"""The page's own files in a browser without a server; its answers are made up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from router.http.playground import routes
from tests.support.browser import TIMEOUT_MS, chromium

ORIGIN = "http://playground.test"
_STATIC = Path(routes.__file__).parent / "static"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A blank page of the playground's origin, whose modules can be imported."""

    def serve(route: Route) -> None:
        name = route.request.url.removeprefix(f"{ORIGIN}/playground/")
        if name == "blank":
            route.fulfill(body="<!doctype html>", content_type="text/html")
        else:
            route.fulfill(path=_STATIC / name)

    with browser.new_context() as profile:
        profile.set_default_timeout(TIMEOUT_MS)
        page = profile.new_page()
        page.route(f"{ORIGIN}/**", serve)
        page.goto(f"{ORIGIN}/playground/blank")
        yield page


@pytest.fixture
def call(page: Page) -> Callable[..., Any]:
    """Return a function that calls a module's function: `call("axis.axisFor", 0.3)`."""

    def call(path: str, *arguments: Any) -> Any:
        module, name = path.split(".")
        script = "async ([module, name, given]) => (await import(`./${module}.js`))[name](...given)"
        return page.evaluate(script, [module, name, list(arguments)])

    return call
