"""The site: links of pages lead to pages of the site, Sphinx is strict, and the built site is whole."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = str(ROOT / "scripts")
if SCRIPTS not in sys.path:
    sys.path.insert(0, SCRIPTS)  # what scripts share lies beside them

import site_links  # noqa: E402
import site_pages  # noqa: E402

RUN = "trust_faults"
SMALL = f"""
import sys
from pathlib import Path
sys.path.insert(0, {SCRIPTS!r})
import make_site, site_pages
site_pages.PLACES = ("README.md", "docs/*.md", "docs/*.ipynb", "examples/*.md")
make_site.TREE = (
    ("How to", ("docs/notebook",)),
    ("Results", ("reports/h200/index",)),
    ("Reference", ("reference/python", "reference/ops", "reference/nn", "reference/pytest",
                   "reference/commands/index", "reference/catalogue/index", "reference/metrics")),
)
sys.exit("\\n".join(make_site.build(Path(sys.argv[1]), frozenset(sys.argv[2:]))) or 0)
"""
"""A site of a few pages and one run, by the code that builds the whole one."""


def lacks_extra() -> str:
    """Why no site can be built here; empty if one can."""
    missing = [name for name in ("furo", "myst_parser", "sphinx") if importlib.util.find_spec(name) is None]
    return f"the extra `docs` isn't installed: {', '.join(missing)}" if missing else ""


def pages(tmp_path: Path, runs: frozenset[str] = frozenset()) -> site_pages.Pages:
    return site_pages.Pages(tmp_path, runs)


@pytest.mark.parametrize(
    ("text", "linked"),
    [
        ("[a page](../SECURITY.md#what-is-executed)", "[a page](../SECURITY.md#what-is-executed)"),
        ("[a README](../examples/README.md)", "[a README](../examples/index.md)"),
        ("[the first page](../README.md)", "[the first page](../index.md)"),
        ("[its folder](../examples)", "[its folder](../examples/index.md)"),
        ("[the notebook](notebook.ipynb)", "[the notebook](notebook.md)"),
        ("[a file](../examples/own_op.py)", "[a file](site:../sources/examples/own_op.py.html)"),
        ("[a folder](../harness/gate/rules)", "[a folder](site:../sources/harness/gate/rules/index.html)"),
        ("[of a hidden folder](../.ci/run)", "[of a hidden folder](site:../sources/ci/run.html)"),
        ("[over\nlines](../examples/README.md)", "[over\nlines](../examples/index.md)"),
        ("[elsewhere](https://a.org/README.md) [here](#part)", "[elsewhere](https://a.org/README.md) [here](#part)"),
        ("```\n[code](../README.md)\n```\n[text](../README.md)", "```\n[code](../README.md)\n```\n[text](../index.md)"),
        ("[nowhere](none.md)", "[nowhere](none.md)"),
        ("[out of the repository](../../README.md)", "[out of the repository](../../README.md)"),
    ],
)  # fmt: skip
def test_a_link_leads_to_the_page_of_the_site(tmp_path: Path, text: str, linked: str) -> None:
    place = PurePosixPath("docs/gate.md")
    assert pages(tmp_path).linked(text, place, place) == linked


def test_a_run_that_the_site_has_is_linked_and_another_one_is_named(tmp_path: Path) -> None:
    place, text = PurePosixPath("docs/gate.md"), "[prelu](../reports/h200/prelu/report.md)"
    assert pages(tmp_path).linked(text, place, place) == "prelu"
    there = pages(tmp_path, frozenset({"prelu"})).linked(text, place, place)
    assert there == "[prelu](../reports/h200/prelu/index.md)"


def test_a_picture_is_staged_beside_its_page(tmp_path: Path) -> None:
    place = PurePosixPath("index.md")
    picture = "reports/h200/softmax/plots/softmax-float32.svg"
    text = f"![softmax]({picture})"
    assert pages(tmp_path).linked(text, PurePosixPath("README.md"), place) == text
    assert (tmp_path / picture).read_bytes() == (ROOT / picture).read_bytes()


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ('<a href="other.html">', False),
        ('<a href="other.html#part">', False),
        ('<a href="other.html#q=prelu">', False),
        ('<a href="#own">', False),
        ('<a href="folder">', False),
        ('<a href="https://example.org/none.html">', False),
        ('<a href="none.html">', True),
        ('<a href="other.html#none">', True),
        ('<a href="#none">', True),
        ('<img src="none.svg">', True),
        ('<link href="none.css">', True),
        ('<script src="none.js"></script>', True),
        ('<a href="../outside.html">', True),
    ],
)
def test_a_link_of_a_built_site_that_leads_nowhere_is_found(tmp_path: Path, link: str, broken: bool) -> None:
    site = tmp_path / "site"
    (site / "folder").mkdir(parents=True)
    (site / "folder" / "index.html").write_text("<p>a folder</p>")
    (site / "other.html").write_text('<p id="part">other</p>')
    (site / "index.html").write_text(f'<p id="own">{link}</p>')
    (tmp_path / "outside.html").write_text("<p>not of the site</p>")
    site_links._read.cache_clear()
    assert bool(site_links.broken(site)) == broken


def test_a_folder_with_other_files_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := lacks_extra():
        pytest.skip(reason)
    monkeypatch.syspath_prepend(SCRIPTS)
    import make_site

    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit):
        make_site.main(["--runs", "none", "--output", str(tmp_path)])
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.skipif(lacks_extra() != "", reason=lacks_extra())
def test_sphinx_is_asked_to_fail_on_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import make_site

    asked: list[list[str]] = []

    def ended(code: int) -> None:
        def run(command: list[str], **_: object) -> SimpleNamespace:
            asked.append(command)
            return SimpleNamespace(returncode=code)

        monkeypatch.setattr("make_site.subprocess.run", run)

    for code, is_made in ((0, True), (1, False)):
        ended(code)
        assert make_site.strict(tmp_path / "source", tmp_path / "site") is is_made
    assert asked[0][1:3] == ["-m", "sphinx"]
    assert {"--fail-on-warning", "--nitpicky"} < {*asked[0]}
    assert asked[0][-2:] == [str(tmp_path / "source"), str(tmp_path / "site")]


@pytest.mark.slow  # the test above has what Sphinx is asked, tests/test_links.py the links of all pages
@pytest.mark.skipif(lacks_extra() != "", reason=lacks_extra())
def test_sphinx_refuses_a_page_with_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    page = tmp_path / "source" / "index.md"
    page.write_text("# A page\n\n[a part](#a-page)\n")
    program = f"import sys; sys.path.insert(0, {SCRIPTS!r}); from pathlib import Path; import make_site\n"
    program += "sys.exit(not make_site.strict(Path(sys.argv[1]), Path(sys.argv[2])))"
    command = [sys.executable, "-c", program, str(page.parent), str(tmp_path / "site")]
    assert subprocess.run(command, check=False).returncode == 0
    page.write_text("# A page\n\n[nothing](none.md)\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.md" in done.stderr


@pytest.mark.slow  # Sphinx goes through the whole reference; links, and that Sphinx is strict, are tested above
@pytest.mark.skipif(lacks_extra() != "", reason=lacks_extra())
def test_a_small_site_is_built_without_a_warning_and_without_a_broken_link(tmp_path: Path) -> None:
    site = tmp_path / "site"
    environment = os.environ | {"GITHUB_REPOSITORY": "an/example"}
    command = [sys.executable, "-c", SMALL, str(site), RUN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

    def page(name: str) -> str:
        return (site / name).read_text(encoding="utf-8")

    assert "GPU benchmarking harness" in page("index.html")
    assert 'href="https://github.com/an/example"' in page("index.html")
    assert 'href="report.html"' in page(f"reports/h200/{RUN}/index.html")
    assert "<!doctype html>" in page(f"reports/h200/{RUN}/report.html")
    assert f'href="{RUN}/index.html"' in page("reports/h200/index.html")
    assert "No case has a time." in page("reports/h200/index.html")
    assert 'id="harness.time"' in page("reference/python.html")
    assert 'id="harness.ops.Op.variant"' in page("reference/ops.html")
    assert 'id="harness.nn.layer_norm"' in page("reference/nn.html")
    assert 'id="cmdoption-harness-run-only"' in page("reference/commands/run.html")
    assert 'id="cmdoption-harness-gate-calibrate-blocks"' in page("reference/commands/gate.html")
    assert "torch.softmax" in page("reference/catalogue/softmax.html")
    assert "of_ceiling" in page("reference/metrics.html")
    assert "Time code from a notebook" in page("docs/notebook.html")
    assert "compiled_variants" in page("sources/examples/own_op.py.html")
