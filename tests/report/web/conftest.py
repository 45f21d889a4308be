"""Pages of small runs, and a real Chromium that opens them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from harness.model import Conditions, KernelFacts, Measurement, Run, Warning
from harness.report.web.document import Before, document

PICTURE = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
SHARES = {"eager": 0.5, "compile": 0.8, "tuned": 0.9}
SIZES = (49, 4096, 16384)
CLOCKS = Conditions(sm_clock_hz=1.98e9, temperature_c=48.0, power_w=500.0)


USUAL = {"width": 1280, "height": 900}
FOLLOW = """fragment => {
  history.replaceState(null, "", fragment || location.pathname);
  Page.changed();
  scrollTo(0, 0);
}"""
BODY = "document.body.outerHTML"
BACK = f"""async () => {{
  ({FOLLOW})("");
  for (const one of document.querySelectorAll("details[open]")) one.open = false;
  for (const part of ["drawer-title", "drawer-parts", "drawer-body", "changes"]) Page.at(part).replaceChildren();
  Page.at("changes").hidden = true;
  document.activeElement.blur();
  await new Promise((done) => setTimeout(done));
  return {BODY};
}}"""
"""Takes back what readers do most, and gives what is there then. A plot is drawn after the event that asks for it."""


class Anything(dict[str, bytes]):
    """A picture for every path."""

    def get(self, key: str, default: Any = None) -> Any:
        return PICTURE

    def __contains__(self, key: object) -> bool:
        return True


@pytest.fixture
def norms(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Run:
    """Two ops at three sizes. At N=49 compile beats tuned; one case failed, one has a warning."""
    noisy = Warning("noisy", "the interval is wide", "sample for longer")

    def case(variant: str, dtype: str, size: int, op: str) -> Measurement:
        share = 0.4 if (variant, size) == ("tuned", 49) else SHARES[variant]
        kernels = (KernelFacts("norm_kernel", 40, 8, 16),) if variant == "tuned" else ()
        made = measured(variant, dtype, (("M", 1000), ("N", size)), share, op=op, kernels=kernels, after=CLOCKS)
        return replace(made, warnings=(noisy,)) if (variant, size) == ("eager", 49) else made

    first, second = (
        [case(v, d, n, op) for d in ("float32", "float16") for n in SIZES for v in SHARES] for op in ("norm", "scale")
    )
    failed = measured("eager", "float32", (("M", 7), ("N", 49)), op="scale", status="crashed", error="lost <here>")
    return make_run(first, [*second, failed])


@lru_cache
def _document(run: Run, before: Before | None) -> str:
    return document(run, (), Anything(), before)


@pytest.fixture
def page_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the page of a run."""

    def write(run: Run, name: str = "report.html", **fields: Any) -> Path:
        file = tmp_path / name
        file.write_text(_document(run, fields.get("before")), encoding="utf-8")
        return file

    return write


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A running Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")
    installed = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with api.sync_playwright() as started:
        try:
            browser = started.chromium.launch(executable_path=installed)
        except api.Error as error:
            pytest.skip(f"no Chromium can be started (playwright install chromium): {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@dataclass
class Tab:
    """A page that tests share: a page of a test's own is a process of its own, which takes seconds to start."""

    page: Any
    content: str = ""
    """The file that stands in the page as if just opened without a fragment; empty if none does."""
    body: str = ""
    """The elements of the page when the file was opened."""

    def show(self, file: Path, fragment: str, color_scheme: str, anew: bool) -> None:
        content = file.read_text(encoding="utf-8")
        if anew or content != self.content:
            self.content = ""
            self.page.emulate_media(media="screen", color_scheme=color_scheme)
            self.page.goto("about:blank")  # where a fragment alone differs, a page stays what it was
            self.page.goto(f"{file.as_uri()}{fragment if anew else ''}")
            self.page.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
        if not anew:
            self.content, self.body = content, self.body if self.content else self.page.evaluate(BODY)
            self.page.evaluate(FOLLOW, fragment)

    def take_back(self) -> None:
        """Take back what was done to the page. A page that isn't as it was then isn't used again."""
        self.page.set_viewport_size(USUAL)
        if self.content and self.page.evaluate(BACK) != self.body:
            self.content = ""


@pytest.fixture(scope="session")
def tab(chromium: Any) -> Tab:
    page = chromium.new_page()
    page.set_default_timeout(20_000)
    return Tab(page)


@pytest.fixture
def opened(chromium: Any, tab: Tab) -> Iterator[Callable[..., Any]]:
    """Opens a file, and at the end fails if the page asked for anything, or wrote anything to the console.

    Most tests share the page of a file that was opened without a fragment, and follows theirs. `anew` opens the file
    with its fragment; so does another width or colour.
    """
    heard: list[str] = []
    files: list[Path] = []
    pages: list[Any] = []
    told: dict[str, Callable[[Any], None]] = {
        "console": lambda message: heard.append(message.text),
        "pageerror": lambda error: heard.append(str(error)),
        "request": lambda request: heard.append(request.url) if _leaves(request.url, files) else None,
    }

    def open_page(
        file: Path,
        fragment: str = "",
        size: tuple[int, int] = (1280, 900),
        color_scheme: str = "light",
        javascript: bool = True,
        anew: bool = False,
    ) -> Any:
        files.append(file)
        page = tab.page if javascript else chromium.new_page(java_script_enabled=False)
        if page in pages:
            tab.take_back()
        else:
            pages.append(page)
            for event, listen in told.items():
                page.on(event, listen)
        page.set_viewport_size({"width": size[0], "height": size[1]})
        if javascript:
            tab.show(file, fragment, color_scheme, anew or size[0] != USUAL["width"] or color_scheme != "light")
        else:
            page.goto(f"{file.as_uri()}{fragment}")
        return page

    yield open_page
    for page in pages:
        if page is tab.page:
            tab.take_back()
        if page is not tab.page or not tab.content:
            page.goto("about:blank")
        for event, listen in told.items():
            page.remove_listener(event, listen)
        if page is not tab.page:
            page.close()
    assert heard == []


def _leaves(url: str, files: list[Path]) -> bool:
    return not url.startswith(("data:", "about:blank", *(file.as_uri() for file in files)))
