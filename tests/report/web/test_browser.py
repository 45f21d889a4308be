"""The page in a real Chromium: what a reader does with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.model import Measurement, Run
from harness.ops import Catalogue
from harness.report.formats import json as results
from tests.rare import rare

pytestmark = [pytest.mark.browser, pytest.mark.slow]  # test_document.py and test_hostile.py have what the page holds

OURS = "norm/tuned/float32/M1000-N49"
OPEN_ALL = "() => document.querySelectorAll('details').forEach(one => { one.open = true })"
HOVERED = "() => document.getElementById('hover').textContent"


def variants(page: Any) -> list[str]:
    """The variants of the rows of the table of cases, without the marks beside them."""
    found: list[str] = page.eval_on_selector_all("#table tbody a", "links => links.map(link => link.textContent)")
    return found


def column(page: Any, number: int) -> list[str]:
    cells: list[str] = page.eval_on_selector_all(
        f"#table tbody td:nth-child({number})", "cells => cells.map(cell => cell.textContent)"
    )
    return cells


def case_in_fragment(page: Any) -> str | None:
    found: str | None = page.evaluate("new URLSearchParams(location.hash.slice(1)).get('case')")
    return found


def test_the_first_screen_answers_who_is_behind(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms))
    assert "4 of 12" in page.inner_text("#answer")
    assert page.locator("#behind tbody tr").count() == 4
    assert page.locator("#bar").is_visible()
    (warning,) = page.locator("#trust > ul > li").all()
    assert warning.inner_text().startswith("noisy in 4 cases")
    page.click("#trust summary")
    assert page.inner_text("#trust details li") == "noisy: sample for longer."


def test_every_answer_begins_on_the_first_screen(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms), size=(1280, 800))
    for part in ("#answer", "#behind tbody tr:last-child", "#ops tbody tr", "#trust li", "#worst img"):
        box = page.locator(part).first.bounding_box()
        # The beginning of the picture, which is as tall as it has variants.
        assert box["y"] + min(100, box["height"]) <= 800, part


def test_a_filter_leaves_what_has_all_words_and_stands_in_the_fragment(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms))
    page.fill("#q", "float16 N4096 norm")
    assert variants(page) == ["tuned", "compile", "eager"]
    told = "the fastest is tuned, 4.551 us; compile takes 1.125x as long"
    assert page.inner_text("#count") == f"3 of 37 cases, in 1 comparison: {told}"
    assert page.evaluate("location.hash") == "#q=float16+N4096+norm"
    page.click("#reset")
    assert page.inner_text("#count") == "37 of 37 cases, in 13 comparisons"


def test_a_number_finds_whole_numbers(norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]) -> None:
    page = opened(page_file(norms))
    page.fill("#q", "n=49")
    assert {text.rpartition("-")[2] for text in column(page, 3)} == {"N49"}


@pytest.mark.parametrize(("show", "count"), [("best", 12), ("ours", 12), ("behind", 4), ("untimed", 1), ("warned", 4)])
def test_a_choice_shows_some_of_the_cases(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any], show: str, count: int
) -> None:
    page = opened(page_file(norms), f"#show={show}")
    assert page.input_value("#show") == show
    assert page.inner_text("#count").startswith(f"{count} of 37 cases")


def test_a_click_on_an_op_filters(norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]) -> None:
    page = opened(page_file(norms))
    page.click("#ops a >> text=scale")
    assert set(column(page, 1)) == {"scale"}
    assert page.input_value("#op") == "scale"


def test_units_are_a_switch(norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]) -> None:
    page = opened(page_file(norms), "#q=float32 N16384 norm tuned")
    assert column(page, 5) == ["36.41 us"]
    page.select_option("#unit", "ms")
    assert column(page, 5) == ["0.03641 ms"]
    assert page.evaluate("location.hash").endswith("unit=ms")


def test_a_link_with_a_filter_leads_to_the_cases(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    file = page_file(norms)
    assert opened(file, "#unit=ms", anew=True).evaluate("scrollY") == 0
    page = opened(file, "#q=float16&unit=ms", anew=True)
    assert page.inner_text("#count").startswith("18 of 37 cases")
    assert page.input_value("#unit") == "ms"
    assert page.evaluate("document.getElementById('cases').getBoundingClientRect().top") < 200


def test_a_rate_has_the_prefix_that_suits_it(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms))
    rates = [984.7, 1526.0, 533.9e9, 0.0]
    assert page.evaluate("rates => rates.map(Page.words.rate)", rates) == ["984.7", "1.526 k", "533.9 G", "0"]


def test_hovering_over_a_point_tells_value_interval_and_clocks(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms), "#q=float32 N16384 norm")
    page.locator("#chart .u-over").scroll_into_view_if_needed()
    box = page.locator("#chart .u-over").bounding_box()
    # Three variants beside each other, the first is tuned; shares from 0 to 1.05 times the largest.
    place = box["x"] + box["width"] * 0.5 / 3, box["y"] + box["height"] * (1 - 1 / 1.05)
    page.mouse.move(place[0] + 40, place[1] + 40)
    page.mouse.move(*place, steps=4)
    told = page.wait_for_function(HOVERED).json_value()
    assert told.startswith(
        "tuned, M1000-N16384: share of the ceiling 90.0%; 36.41 us, 95% interval 36.39 us to 36.42 us"
    )
    assert told.endswith("SM 1980 MHz, 48 °C, 500 W")
    page.mouse.click(*place)
    assert page.inner_text("#drawer-title") == "norm/tuned/float32/M1000-N16384"


def test_a_permalink_opens_the_details_of_a_case(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms), f"#case={OURS}", anew=True)
    page.wait_for_selector("#drawer-body .histogram")
    told = page.inner_text("#drawer")
    assert page.inner_text("#drawer-title") == OURS
    for part in ("Why it takes so long", "40.0%", "norm_kernel", f"--only {OURS}", "11 samples", "SM 1980 MHz"):
        assert part in told
    # The other variants of the comparison are a click away, and Back comes back.
    page.click("#drawer-body a >> text=compile")
    assert case_in_fragment(page) == "norm/compile/float32/M1000-N49"
    page.go_back()
    assert page.inner_text("#drawer-title") == OURS
    page.click("#close")
    assert not page.locator("#drawer").is_visible()
    assert case_in_fragment(page) is None


def test_buttons_lead_to_the_parts_of_the_details(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms), f"#case={OURS}")
    page.click("#drawer-parts button >> text=How it was measured")
    head, top = (page.locator(part).bounding_box() for part in ("#drawer-body h3 >> text=How it", "#drawer .top"))
    assert top["y"] == 0
    assert top["height"] <= head["y"] <= 900 - head["height"]


def test_a_case_that_the_run_lacks_is_told(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms), "#case=no/such/case")
    assert "no case of this name" in page.inner_text("#drawer-body")


def test_all_works_by_keyboard(norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]) -> None:
    page = opened(page_file(norms))
    page.keyboard.press("/")
    page.keyboard.type("n49 scale float16")
    assert len(variants(page)) == 3
    head = page.locator("#table th", has_text="time").first
    head.locator("[tabindex='0']").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector('#table th[aria-sort="ascending"]')  # a table is sorted after the key's event has ended
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator("#table tbody a").first.focus()
    page.keyboard.press("Enter")
    page.locator("#drawer").wait_for()
    # A dialog keeps the focus: whatever has it lies inside.
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('#drawer')")
    page.keyboard.press("Escape")
    assert not page.locator("#drawer").is_visible()


def test_a_variant_can_be_hidden_in_the_plot(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms))
    button = page.locator("#legend button", has_text="eager")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not page.evaluate("Page.plot.drawn.series.find(({ label }) => label === 'eager').show")


def test_a_click_on_a_head_sorts_the_best_first(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms))
    head = page.locator("#table th", has_text="of ceiling")
    head.click()
    page.wait_for_selector('#table th[aria-sort="descending"]')  # a table is sorted after the click has ended
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, 8)[0] == "90.0%"
    head.click()
    page.wait_for_selector('#table th[aria-sort="ascending"]')
    shares = [float(text.rstrip("%")) for text in column(page, 8) if text]
    assert shares == sorted(shares)
    assert shares[0] == 40.0


def test_dozens_of_variants_are_folded_with_the_place_of_the_case(
    measured: Callable[..., Measurement],
    make_run: Callable[..., Run],
    page_file: Callable[..., Path],
    opened: Callable[..., Any],
) -> None:
    many = [measured(f"v{number:02}", "float32", (("N", 64),), 0.9 - number / 50) for number in range(11)]
    page = opened(page_file(make_run(many)), f"#case={many[2].case.id}")
    folded = page.locator("#drawer-body details").first
    assert folded.locator("summary").inner_text() == "11 variants, of which this is number 3; v00 is the first"
    assert not folded.locator("table").is_visible()
    page.click("#drawer-parts button >> text=All variants")
    assert folded.locator("tbody tr").count() == 11
    assert folded.locator("table").is_visible()


def test_the_button_of_the_source_opens_the_kernel(
    measured: Callable[..., Measurement],
    make_run: Callable[..., Run],
    page_file: Callable[..., Path],
    opened: Callable[..., Any],
) -> None:
    Catalogue()
    ours = measured("tuned", "float32", (("M", 8), ("N", 64)), 0.5, op="softmax")
    page = opened(page_file(make_run([ours])), f"#case={ours.case.id}")
    page.click("#drawer-parts button >> text=Source")
    source = page.locator("#drawer-body .source", has_text="__global__").first
    source.wait_for()
    assert "softmax.cu" in source.get_attribute("aria-label")
    assert source.is_visible()


BACK = "() => getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 27)"


def test_light_and_dark_follow_the_system_and_a_button(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms), color_scheme="dark")
    assert page.evaluate(BACK) == DARK
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    page.click("#theme")
    assert page.evaluate(BACK) == LIGHT
    assert page.evaluate("location.hash") == "#theme=light"


def test_on_paper_there_are_no_controls_and_no_dark(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms), color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate(BACK) == LIGHT
    assert not page.locator("#bar").is_visible()
    assert page.locator("#answer").is_visible()
    # A4 between margins of 1 cm. Nothing scrolls on paper, so nothing may be wider.
    page.set_viewport_size({"width": 718, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 718


@pytest.mark.parametrize("width", [360, rare(768), rare(1280)])
def test_the_page_is_never_wider_than_the_screen(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any], width: int
) -> None:
    run = replace(norms, header=replace(norms.header, git_revision="0123456789" * 9))
    page = opened(page_file(run), f"#case={OURS}", size=(width, 700))
    page.wait_for_selector("#drawer-body h3")
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.getElementById('drawer').scrollWidth") <= width


def test_without_javascript_the_answer_and_all_tables_are_there(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any]
) -> None:
    page = opened(page_file(norms), javascript=False)
    assert "4 of 12" in page.inner_text("#answer")
    assert not page.locator("#bar").is_visible()
    page.locator("summary", has_text="Fastest variants").click()
    assert page.locator("details[open] tbody tr").count() == 12
    assert page.locator("details[open] tbody tr").first.is_visible()
    assert "need JavaScript" in page.inner_text("#cases")


def faster(run: Run, factor: float) -> Run:
    """The run with a shorter time of one case, and without another case."""
    made = [
        replace(m, samples=tuple(s / factor for s in m.samples)) if m.case.id == OURS else m for m in run.measurements
    ]
    return replace(run, measurements=tuple(made[:-1]))


def test_a_second_run_says_what_changed(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any], tmp_path: Path
) -> None:
    other = page_file(faster(norms, 1.25), "other.html")
    page = opened(page_file(norms))
    page.set_input_files("#second", other)
    page.wait_for_selector("#changes tbody tr")
    (row,) = page.locator("#changes tbody tr").all()
    assert [cell.inner_text() for cell in row.locator("td").all()][3:] == ["0.800x", "0.799x to 0.801x", "slower"]
    assert "0 faster, 1 slower, 35 ~, 1 missing" in page.inner_text("#changes")


def test_a_second_run_may_be_its_table_of_results(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any], tmp_path: Path
) -> None:
    (table,) = results.write(faster(norms, 0.5), tmp_path)
    page = opened(page_file(norms))
    page.set_input_files("#second", table)
    page.wait_for_selector("#changes tbody tr")
    assert "2.000x" in page.inner_text("#changes tbody tr")


def test_another_file_is_refused_with_the_reason(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"results": "<b>"}))
    page = opened(page_file(norms))
    page.set_input_files("#second", file)
    page.wait_for_selector("#changes .failure")
    assert "other.json can't be read" in page.inner_text("#changes")


AXE = Path(__file__).with_name("axe.min.js")
FINDINGS = """async () => {
  const { violations } = await axe.run({ resultTypes: ["violations"] });
  return violations.map(({ id, nodes }) => [id, nodes[0].html, nodes[0].failureSummary]);
}"""


@pytest.mark.parametrize(
    ("scheme", "fragment"),
    [
        pytest.param("light", "#q=N49", id="page-light"),
        rare("dark", "#q=N49", id="page-dark"),
        rare("light", f"#case={OURS}", id="drawer-light"),
        rare("dark", f"#case={OURS}", id="drawer-dark"),
    ],
)
def test_axe_finds_nothing(
    norms: Run, page_file: Callable[..., Path], opened: Callable[..., Any], scheme: str, fragment: str
) -> None:
    page = opened(page_file(norms), fragment, color_scheme=scheme)
    if "case" in fragment:
        page.wait_for_selector("#drawer-body h3")
    page.evaluate(OPEN_ALL)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(FINDINGS) == []
