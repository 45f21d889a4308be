"""The picture of a page in README.md."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "make_picture.py"


def test_the_picture_is_small_and_stands_beside_the_run_that_it_shows() -> None:
    # The script itself imports Playwright, which not every machine has.
    named = re.search(r'^RUN = "(\w+)"$', SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    assert named
    picture = ROOT / "docs" / "page.png"
    assert picture.stat().st_size < 150_000
    assert Image.open(picture).size == (1280, 800)
    before = (ROOT / "README.md").read_text(encoding="utf-8").partition("](docs/page.png)")[0].splitlines()[-3]
    assert f"reports/h200/{named[1]}/report.md" in before
