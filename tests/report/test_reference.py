"""The reference runs of the repository: their pages and pictures show what the records give with today's code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import get_data_path
from PIL import ImageFont

from harness import report
from harness.ops import Catalogue, known_cases
from harness.ops.catalogue import LOADED
from harness.report import older
from harness.report.formats import plots
from tests.one_test import one_test

SVG = "{http://www.w3.org/2000/svg}"
FONT = Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
REPORTS = Path(__file__).parent.parent.parent / "reports" / "h200"
RUNS = sorted(path.parent for path in REPORTS.glob("*/run.json"))
EVERY = 90
"""A test draws every 90th picture again, other ones each day: to draw all takes more than a minute."""
EVERY_PAGE = 12
"""A test writes every 12th page again, other ones each day."""


@pytest.fixture(autouse=True)
def bundled_ops_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ops that other tests of this process have loaded: a page says what it knows of their variants."""
    for name in {*LOADED} - {*Catalogue()}:
        monkeypatch.delitem(LOADED, name)


def test_pages_of_reference_runs_are_what_their_records_give_today(tmp_path: Path) -> None:
    for folder in RUNS[datetime.now(UTC).toordinal() % EVERY_PAGE :: EVERY_PAGE]:
        assert_page(folder, tmp_path)


@pytest.mark.slow  # the test above takes some of these pages each day
@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_the_page_of_every_reference_run_is_what_its_records_give_today(folder: Path, tmp_path: Path) -> None:
    assert_page(folder, tmp_path)


def assert_page(folder: Path, tmp_path: Path) -> None:
    assert Catalogue()  # ops define metrics of their own
    run = known_cases.load(folder)
    assert len(run.results) > 0, folder
    assert run.losses == ()
    report.write(run, tmp_path, ["markdown"])
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == page, "run scripts/make_reports.py"
    for row in (row for scenario in run.header.scenarios for row in scenario.rows):
        assert re.search(rf"^\| {row} +\| .*: ", page, re.MULTILINE), f"{row} has no line"


def test_tables_for_other_programs_are_not_kept_beside_the_records() -> None:
    ignored = (REPORTS.parent.parent / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"/reports/h200/*/results.csv", "/reports/h200/*/results.json"} <= set(ignored)


@pytest.mark.slow  # the next test compares their texts
def test_pictures_of_reference_runs_show_what_the_records_give(tmp_path: Path) -> None:
    assert Catalogue()  # ops define figures of their own
    pictures = sorted(REPORTS.glob("*/plots/*"))
    today = pictures[datetime.now(UTC).toordinal() % EVERY :: EVERY]
    assert len(today) >= len(pictures) // EVERY > 0
    for folder, group in groupby(today, lambda picture: picture.parents[1]):
        planned = dict(plots.planned(older.without_false_warnings(known_cases.load(folder))))
        for picture in group:
            [again] = planned[str(picture.relative_to(folder))](tmp_path / picture.name)
            now, committed = again.read_text(encoding="utf-8"), picture.read_text(encoding="utf-8")
            assert same(now, committed), f"{picture}: run scripts/make_reports.py"


def same(one: str, other: str) -> bool:
    """Whether two pictures show the same: texts and elements are equal, and places within a point.

    Another build of matplotlib may round places in another way, and give other names to clips and markers.
    """
    (words, places), (other_words, other_places) = map(content, (one, other))
    return words == other_words and len(places) == len(other_places) and bool(np.allclose(places, other_places, 0, 1))


def content(svg: str) -> tuple[list[str], list[float]]:
    """Elements, texts and colours of a picture in their order, and the numbers that say where these are."""
    words: list[str] = []
    places: list[float] = []
    for element in ElementTree.fromstring(svg).iter():
        words += [element.tag, (element.text or "").strip() if element.tag == f"{SVG}text" else ""]
        words += re.findall(r"(?:fill|stroke): [^;]+", element.get("style", ""))
        for name in ("d", "x", "y", "transform"):
            places += map(float, re.findall(r"-?\d+(?:\.\d+)?", element.get(name, "")))
    return words, places


@one_test(
    ("change", "shown"),
    [
        (lambda svg: svg.replace("M 10.2 20", "M 10.4 20").replace("#a1", "#b2"), True),
        (lambda svg: svg.replace("M 10.2 20", "M 13 20"), False),
        (lambda svg: svg.replace("L 3 4", ""), False),
        (lambda svg: svg.replace("eager", "tuned"), False),
        (lambda svg: svg.replace("fill: #ff0000", "fill: #00ff00"), False),
    ],
)
def test_a_picture_that_shows_something_else_would_be_noticed(change: Callable[[str], str], shown: bool) -> None:
    drawing = (
        f'<svg xmlns="{SVG[1:-1]}"><path d="M 10.2 20 L 3 4" style="fill: #ff0000" clip-path="url(#a1)"/>'
        "<text>eager</text></svg>"
    )
    assert same(drawing, change(drawing)) is shown


FOLDERS = sorted({page.parent for page in REPORTS.rglob("*.md")})


@pytest.mark.slow  # the tests below have what would be noticed, the first one pages
@one_test("folder", FOLDERS, ids=lambda folder: folder.name)
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
def length_of(text: str) -> float:
    """The length of a text in a font of 100 pixels. Pictures have the same few words on their axes."""
    return font().getlength(text)


@cache
def font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(FONT, 100)


def extent(text: ElementTree.Element) -> tuple[float, float, float, float]:
    """The box of a text, from its place, its size and its direction."""
    style, transform = text.get("style", ""), text.get("transform", "")
    size = float(re.findall(r"font-size: ([0-9.]+)px", style)[0])
    length = length_of(text.text or "") * size / 100
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
