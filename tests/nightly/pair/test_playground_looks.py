"""Looks and accessibility of the playground: themes, widths, contrast, names, tab order."""

import os
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import opened
from tests.support.page_checks import faint_texts, unnamed_controls
from tests.support.playground import NARROW, WATCH, WIDE, ready, style

SCREENSHOTS = os.environ.get("FLYSERVE_SCREENSHOTS")
"""Folder that keeps the screenshots: docs/images, to renew those of the documentation."""
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def test_tabs_reach_every_control_in_reading_order(page: Page) -> None:
    page.keyboard.press("Tab")
    reached = []
    for _ in range(40):
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
        )
        page.keyboard.press("Tab")
    expected = [
        "Skip to the response",
        "theme",
        "prompt",
        "Word problem",
        "generate",
        "compare",
        "stop",
        "preset",
    ]
    assert [name for name in reached if name in expected][: len(expected)] == expected


def test_the_theme_is_the_systems_until_one_is_chosen(browser: Browser, url: str) -> None:
    with opened(browser, url, viewport=WIDE, color_scheme="dark") as page:
        ready(page)
        dark = style(page, "body", "background-color")
        toggle = page.get_by_role("button", name="Dark theme")
        expect(toggle).to_have_attribute("aria-pressed", "true")
        toggle.click()
        expect(toggle).to_have_attribute("aria-pressed", "false")
        light = style(page, "body", "background-color")
        assert light != dark
        page.reload()
        assert style(page, "body", "background-color") == light


def take(page: Page, viewport: dict[str, int], file: Path) -> None:
    """Take a picture of the whole page, with the card of a rescued token if there is room for it."""
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": viewport["width"], "height": height})
    if viewport == WIDE:
        page.locator("#tokens .rescued").first.hover()
    page.screenshot(path=file)


@pytest.mark.parametrize(("name", "viewport"), [("wide", WIDE), ("narrow", NARROW)])
def test_it_looks_well(
    browser: Browser,
    url: str,
    tmp_path: Path,
    name: str,
    viewport: dict[str, int],
) -> None:
    with opened(browser, url, viewport=viewport) as page:
        ready(page)
        page.evaluate(WATCH)
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_role("status")).to_contain_text("Done: exact")
        page.get_by_role("button", name="Generate").click()
        expect(page.get_by_role("status")).to_contain_text(" tokens in ")
        # On a narrow page the response grows, and no box scrolls.
        assert viewport == NARROW or page.evaluate("shifts") == []
        for theme in THEMES:
            page.set_viewport_size(viewport)
            page.emulate_media(color_scheme=theme)
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
            assert faint_texts(page) == []
            assert unnamed_controls(page) == []
            folder = Path(SCREENSHOTS) if SCREENSHOTS else tmp_path
            take(page, viewport, folder / f"playground-{name}-{theme}.png")
