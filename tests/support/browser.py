"""A headless Chromium for one module, and pages whose console must stay free of errors."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-lcd-text",
)

TIMEOUT_MS = 240_000
"""Ends a test that hangs: a busy machine may be slow."""
expect.set_options(timeout=TIMEOUT_MS)


def chromium_path() -> str:
    """Return the path of the installed Chromium; without one the test fails and is not skipped."""
    named = os.environ.get("CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.fail("there is no Chromium: run `make chromium`, or set CHROMIUM to its path")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser. No asyncio loop may run in this thread until the block ends."""
    path = chromium_path()
    # Chromium's own sandbox does not run as root, which containers and CI are.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=False, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, url: str, **context: Any) -> Iterator[Page]:
    """Open a page in its own profile; errors in its console fail the test."""
    with browser.new_context(**context) as profile:
        profile.set_default_timeout(TIMEOUT_MS)
        page = profile.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if _is_bad(message.type) else None)
        page.goto(url)
        yield page
        assert complaints == []


def _is_bad(kind: str) -> bool:
    return kind in ("error", "warning")
