"""Make docs/page.png, the picture of a page in README.md: the first screen of a committed run, in Chromium.

The page itself says the device and the day. The picture depends on the fonts of the machine, so that no test makes it
again. It needs the extra `browser`, and a Chromium.
"""

from __future__ import annotations

import shutil
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from committed import ROOT, RUNS
from PIL import Image
from playwright.sync_api import sync_playwright

from harness.ops import Catalogue, known_cases
from harness.report.formats import html

RUN = "norms"
PICTURE = ROOT / "docs" / "page.png"
_SIZE = (1280, 800)
_COLOURS = 64
"""More colours make the file larger, and nothing in it clearer."""


def main() -> None:
    """Write the picture."""
    Catalogue()
    with TemporaryDirectory() as draft:
        (page,) = html.write(known_cases.load(RUNS / RUN), Path(draft))
        shown = Image.open(BytesIO(_screen(page))).convert("RGB")
    shown.quantize(_COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(PICTURE.relative_to(ROOT), PICTURE.stat().st_size, "bytes")


def _screen(page: Path) -> bytes:
    """The first screen of a page as PNG."""
    installed = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=installed)
        shown = browser.new_page(viewport={"width": _SIZE[0], "height": _SIZE[1]}, color_scheme="light")
        shown.goto(page.as_uri())
        shown.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
        made: bytes = shown.screenshot()
        browser.close()
    return made


if __name__ == "__main__":
    main()
