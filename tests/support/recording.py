"""`make recording`: record the playground, which decodes one prompt in three modes, for the README."""

import io
import sys
import time
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageOps
from playwright.sync_api import Page, expect

from tests.support.browser import chromium, opened
from tests.support.playground import ready
from tests.support.processes import ROOT, demo_deployment

OUTPUT = ROOT / "docs" / "images" / "recording.gif"
VIEWPORT = {"width": 1280, "height": 760}
MAX_BYTES = 1_000_000

_COLOURS = 48
_LAST_FRAME_MS = 4_000
_SHORTEST_FRAME_MS = 20
"""Browsers show a frame that is shorter than this for 100 ms."""

Shot = tuple[float, bytes]


def main(output: Path = OUTPUT) -> None:
    """Record, and write the animation. Its times are those of this machine: record on one that is idle."""
    with demo_deployment(num_targets=1) as deployment, chromium() as browser:
        (url,) = deployment.router.urls
        with opened(browser, url, viewport=VIEWPORT, color_scheme="light") as page:
            shots = record(page)
    animation = animated(shots)
    if len(animation) > MAX_BYTES:
        raise ValueError(f"the recording has {len(animation)} bytes, at most {MAX_BYTES}: use fewer colours")
    output.write_bytes(animation)
    print(f"{output}: {len(shots)} frames, {len(animation):,} bytes")


def record(page: Page) -> list[Shot]:
    """Compare the modes once to warm up, then again; return pictures of it with their times in seconds."""
    ready(page)
    compare = page.get_by_role("button", name="Compare")
    done = page.get_by_role("status")
    compare.click()
    expect(done).to_contain_text("Done: exact")
    compare.click()
    shots = [_shot(page)]
    while not (done.text_content() or "").startswith("Done"):
        shots.append(_shot(page))
    return [*shots, _shot(page)]


def _shot(page: Page) -> Shot:
    return time.monotonic(), page.locator("#comparison-section").screenshot()


def animated(shots: list[Shot]) -> bytes:
    """Return a GIF of pictures, each shown until the next one; equal ones in a row are one frame."""
    distinct = [shots[0], *(after for before, after in pairwise(shots) if before[1] != after[1])]
    spans = [round(1000 * (after[0] - before[0])) for before, after in pairwise(distinct)]
    durations = [max(_SHORTEST_FRAME_MS, span) for span in spans] + [_LAST_FRAME_MS]
    pictures = [Image.open(io.BytesIO(picture)).convert("RGB") for _, picture in distinct]
    height = max(picture.height for picture in pictures)
    # The section grows: the part below it is white until then.
    pictures = [
        ImageOps.pad(each, (each.width, height), color="white", centering=(0, 0)) for each in pictures
    ]
    palette = pictures[-1].quantize(_COLOURS)
    frames = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    file = io.BytesIO()
    frames[0].save(
        file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=False
    )
    return file.getvalue()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
