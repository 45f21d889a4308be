"""The reference runs of the repository: their reports have the figures that were published, and whole pictures."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib import get_data_path
from PIL import ImageFont

from harness import report, store
from harness.ops import Catalogue

SVG = "{http://www.w3.org/2000/svg}"
FONT = Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
REPORTS = Path(__file__).parent.parent.parent / "reports" / "h200"
RUNS = sorted(path.parent for path in REPORTS.glob("*/run.json"))
RENAMED = {
    "time_s": "time",
    "low_s": "low",
    "high_s": "high",
    "call_time_s": "call_time",
    "effective_bandwidth": "bandwidth",
    "flops_per_s": "flops",
    "items_per_s": "items",
}
"""Columns that had another name when the run was published."""
FIGURES = [*RENAMED, "noise", "moved_bandwidth", "ceiling_bandwidth", "of_peak", "of_ceiling", "speedup", "read_bytes",
           "written_bytes", "moved_bytes", "registers", "local_bytes", "status", "variant", "dtype"]  # fmt: skip


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_a_reference_run_has_the_figures_that_were_published(folder: Path, tmp_path: Path) -> None:
    assert Catalogue()  # ops define metrics of their own
    run = store.load(folder)
    report.write(run, tmp_path, ["csv", "markdown", "json"])
    with (folder / "results.csv").open(newline="") as published, (tmp_path / "results.csv").open(newline="") as now:
        before, after = list(csv.DictReader(published)), list(csv.DictReader(now))
    assert len(before) == len(after) > 0
    for old, new in zip(before, after, strict=True):
        for name in FIGURES:
            key = RENAMED.get(name, name)
            assert new[key] == old.get(name, old.get(key)), f"{old['case']}: {name}"
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == page, "run scripts/make_reports.py"
    for row in (row for scenario in run.header.scenarios for row in scenario.rows):
        assert re.search(rf"^\| {row} +\| .*: ", page, re.MULTILINE), f"{row} has no line"


FOLDERS = sorted({page.parent for page in REPORTS.rglob("*.md")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_pictures_of_a_report_are_there_and_whole(folder: Path) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in folder.glob("*.md"))
    shown = {folder / name for name in re.findall(r"!\[[^]]*\]\(([^)]*)\)", pages)}
    # A picture that no page shows was left behind by another run.
    assert shown == {*folder.glob("plots/*"), *folder.glob("*.svg"), *folder.glob("*.png")}
    for picture in shown:
        assert list(cut(picture)) == [], picture.name


def cut(picture: Path) -> Iterator[str]:
    """What isn't whole in a picture: its file, or a text that lies outside of it."""
    content = picture.read_bytes()
    if picture.suffix == ".png":
        yield from [] if content.endswith(b"IEND\xaeB`\x82") else ["the file ends early"]
        return
    root = ElementTree.fromstring(content)
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for text in root.iter(f"{SVG}text"):
        if text.get("style"):  # a formula is a text of parts that have styles of their own
            x0, y0, x1, y1 = extent(text)
            if min(x0, y0) < -1 or x1 > width + 1 or y1 > height + 1:
                yield f"'{text.text}' is cut off"


@cache
def font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(FONT, 100)


def extent(text: ElementTree.Element) -> tuple[float, float, float, float]:
    """The box of a text, from its place, its size and its direction."""
    style, transform = text.get("style", ""), text.get("transform", "")
    size = float(re.findall(r"font-size: ([0-9.]+)px", style)[0])
    length = font().getlength(text.text or "") * size / 100
    place = re.findall(r"translate\(([-0-9.]+) ([-0-9.]+)\)", transform) or [(text.get("x", ""), text.get("y", ""))]
    turned, (x, y) = "rotate(-90" in transform, map(float, place[0])
    before = length * {"middle": 0.5, "end": 1.0}.get(re.findall(r"text-anchor: (\w+)|$", style)[0], 0.0)
    if turned:
        return x - size, y + before - length, x, y + before
    return x - before, y - size, x - before + length, y


@pytest.mark.parametrize(
    ("drawing", "why"),
    [
        ('<text style="font-size: 7px" transform="translate(10 20)">fits</text>', []),
        ('<text style="font-size: 7px" transform="translate(80 20)">too long</text>', ["'too long' is cut off"]),
        ('<text style="font-size: 7px" transform="translate(9 40) rotate(-90)">upwards</text>', []),
        (
            '<text style="font-size: 7px" transform="translate(9 20) rotate(-90)">upwards</text>',
            ["'upwards' is cut off"],
        ),
        ('<text style="font-size: 7px; text-anchor: middle" x="9" y="5" transform="rotate(-90 9 5)">up</text>', []),
        ('<text style="font-size: 7px; text-anchor: end" x="9" y="9">to the left</text>', ["'to the left' is cut off"]),
    ],
)
def test_a_text_that_is_cut_off_would_be_noticed(drawing: str, why: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    picture.write_text(f'<svg xmlns="{SVG[1:-1]}" viewBox="0 0 100 50">{drawing}</svg>')
    assert list(cut(picture)) == why


def test_a_picture_whose_file_ends_early_would_be_noticed(tmp_path: Path) -> None:
    whole = next(REPORTS.rglob("*.png")).read_bytes()
    (tmp_path / "a.png").write_bytes(whole[:-100])
    assert list(cut(tmp_path / "a.png")) == ["the file ends early"]
