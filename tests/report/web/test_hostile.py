"""Names, titles, errors and sources of a stranger's run: the page shows them, and they do nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.model import Attachment, KernelFacts, KernelProfile, Measurement, Run, Warning
from harness.report.web import parts, sources
from harness.report.web.document import Before

HURT = "window.hurt = 1"
TEXTS = [
    f"<script>{HURT}</script>",
    f"</script><script>{HURT}</script>",
    f"<img src=x onerror='{HURT}'>",
    f'" onmouseover="{HURT}" x="',
    f"' onfocus='{HURT}' autofocus x='",
    f"</title></style><svg onload='{HURT}'>",
    f"<!--><svg/onload='{HURT}'>-->",
    f"javascript:{HURT}",
    "&lt;b&gt; &#0; \x1b[2J \x00 \u202e",
]


@pytest.fixture
def hostile(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Run:
    """A run each text of which says something of this kind."""
    cases: list[Measurement] = []
    for number, text in enumerate(TEXTS):
        size = (("N", 64 + number),)
        warned = (Warning(f"code{text}", f"message {text}", f"advice {text}"),)
        kernels = (KernelFacts(f"kernel {text}", 1, 2, 3),)
        cases += [
            measured("eager", "float32", size, 0.5, op=f"op{text}", warnings=warned),
            measured("tuned", "float32", size, 0.4, op=f"op{text}", kernels=kernels),
            measured(f"v{text}", "float32", size, op=f"op{text}", status="crashed", error=f"{text}\n{text}"),
        ]
    every = "".join(TEXTS)
    seen = (KernelProfile(f"seen {every}", 1.0, (("time", 1e-6), (f"stall_{every}", 0.5))),)
    attached = (Attachment(cases[0].case.id, f"tool {every}", (("figure", 1.0),), (f"file {every}",), seen),)
    run = make_run(cases, title=every, shows=f"{every} `{every}`", source=every, attachments=attached, losses=(every,))
    machine = replace(run.header.machine, driver=every, devices=(replace(run.header.machine.device, name=every),))
    return replace(run, header=replace(run.header, machine=machine, command=("harness", every), git_revision=every))


class Elements(HTMLParser):
    """The scripts, and the attributes that a browser runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.running: list[tuple[str, str | None]] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "script":
            self.scripts.append(dict(attrs))
        self.running += [(name, value) for name, value in attrs if name.startswith("on")]
        self.running += [
            (name, value) for name, value in attrs if name in ("href", "src") and "script:" in (value or "")
        ]


def test_the_page_has_its_own_scripts_alone_and_no_attribute_that_runs(
    hostile: Run, page_file: Callable[..., Path]
) -> None:
    found = Elements()
    found.feed(page_file(hostile).read_text(encoding="utf-8"))
    assert len(found.scripts) == len(parts.SCRIPTS) + 2
    assert found.running == []
    assert "svg" not in found.tags


def test_a_source_is_text_whatever_it_holds() -> None:
    for text in TEXTS:
        found = Elements()
        found.feed(sources.highlighted("mine.cu", f'// {text}\n__global__ void f() {{ "{text}"; }}\n{text}'))
        assert found.tags <= {"i"}


@pytest.mark.slow  # the policy stops what would run, even if a text came through
@pytest.mark.browser
def test_nothing_of_it_runs_and_all_of_it_is_shown(
    hostile: Run, page_file: Callable[..., Path], opened: Callable[..., Any], tmp_path: Path
) -> None:
    page = opened(page_file(hostile, before=Before(f"old {TEXTS[0]}", hostile)))
    assert TEXTS[0] in page.inner_text("#ops")
    for case in [m.case.id for m in hostile.measurements[:6]]:
        page.evaluate("id => Page.set({ case: id })", case)
        page.wait_for_function("() => !!document.querySelector('#drawer-body h3')")
        assert page.text_content("#drawer-title") == case
        page.click("#close")
    page.fill("#q", TEXTS[2])
    page.fill("#q", "")
    page.set_input_files("#second", page_file(hostile, "other.html"))
    page.wait_for_function("() => document.getElementById('changes').textContent.includes('Compared with a-run')")
    assert page.evaluate("window.hurt") is None
    assert page.locator("img:not([src^='data:'])").count() == 0


@pytest.mark.slow  # test_document.py has that the policy names what stands in the page
@pytest.mark.browser
def test_the_policy_stops_what_would_run_or_ask(norms: Run, page_file: Callable[..., Path], chromium: Any) -> None:
    file = page_file(norms)
    content = file.read_text(encoding="utf-8")
    added = f"<img src=x onerror='{HURT}'><script>{HURT}</script><img src='https://example.invalid/x.png'></body>"
    file.write_text(content.replace("</body>", added), encoding="utf-8")
    context = chromium.new_context()
    page, asked = context.new_page(), []
    page.on("requestfinished", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_function("() => document.documentElement.dataset.ready === 'yes'")
    assert page.evaluate("window.hurt") is None
    assert [url for url in asked if "example.invalid" in url] == []
    context.close()
