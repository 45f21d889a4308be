"""The page of a run, put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, get_args
from urllib.parse import quote

from harness.differences import Compared, Verdict, compare, mismatches
from harness.model import Difference, Run
from harness.report import build, comparison, preface
from harness.report.summary import summarise
from harness.report.tree import Block, Details, Note, Section
from harness.report.web import cases, first, parts
from harness.report.web.markup import Markup, text


class Before(NamedTuple):
    """Another run that the page's run is compared with. name: what the page calls it."""

    name: str
    run: Run


def document(run: Run, notes: Sequence[str], pictures: Mapping[str, bytes], before: Before | None = None) -> str:
    """The page of a run as HTML. notes: sentences to begin with. pictures: SVG files by their path in the run's folder.

    before: a run to compare with, the older one.
    """
    page, summary = build.page(run, notes), summarise(run)
    lines = cases.of_run(run)
    fragments = {standing.group: f"q={quote(standing.group, safe='')}" for standing in summary.whole.every}
    fragments |= {line.case.id: f"case={quote(line.case.id, safe='')}" for line in lines}
    markup = Markup(fragments, pictures)
    ahead = [block for block in page.blocks if isinstance(block, Note) and block.kind == "warning"]
    sections = [block for block in page.blocks if isinstance(block, Section) and block.title not in first.TOLD]
    body = [
        f"<header>{first.header(run)}</header>",
        _BAR,
        "<main>",
        first.answer(summary, markup),
        _changes(run, before, markup),
        "<div class='two'><div>",
        *(first.behind(summary, markup), first.ops(summary, markup), first.figures(run, summary, markup)),
        "</div><div>",
        *(first.trust(summary, ahead, markup), first.worst(run, markup)),
        "</div></div>",
        _EXPLORER,
        "<section id='all'><h2>All tables and figures</h2>",
        *_folded(sections, markup),
        "</section></main>",
        _DRAWER,
    ]
    data = {"rows": cases.rows(run, lines, summary), "more": cases.more(run, lines, markup)}
    return "\n".join(_whole(preface.title(run), body, {name: cases.packed(found) for name, found in data.items()}))


def _whole(title: str, body: Sequence[str], data: Mapping[str, str]) -> Iterator[str]:
    scripts, styles = parts.scripts(), parts.styles()
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{text(parts.policy(scripts, styles))}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
    yield f"<title>{text(title)}</title>"
    yield from (f"<style>{style}</style>" for style in styles)
    yield "</head><body>"
    yield from body
    # No browser runs a script of this type: it holds data.
    yield from (f'<script type="application/gzip" id="{name}">{found}</script>' for name, found in data.items())
    yield from (f"<script>{script}</script>" for script in scripts)
    yield "</body></html>"


def _changes(run: Run, before: Before | None, markup: Markup) -> str:
    """What changed since another run: times that differ by more than their noise, then all cases."""
    if before is None:
        return "<section id='changes' hidden></section>"
    found = compare(before.run, run)
    changed = sorted((d for d in found if d.verdict in ("faster", "slower")), key=lambda d: d.ratio or 0.0)
    missing = [d for d in found if d.verdict == "missing"]
    counts = Counter(d.verdict for d in found)
    told = f"Compared with {before.name}, measured {before.run.header.started} on {before.run.header.machine.name}: "
    told += ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict)) + ". Above 1 this run is faster."
    blocks: list[Block] = [Note(told), *(Note(f"{note}.", "warning") for note in mismatches(before.run, run))]
    blocks += _differences(before, changed) if changed else [Note("No time differs by more than its noise.", "good")]
    if missing:
        blocks.append(Details(f"{len(missing)} without a time in one of the runs", _differences(before, missing)))
    blocks.append(Details(f"All {len(found)} cases", _differences(before, found)))
    return f"<section id='changes'><h2>What changed</h2>{markup.blocks(blocks, 3)}</section>"


def _differences(before: Before, found: Sequence[Difference]) -> tuple[Block, ...]:
    return comparison.page(Compared(before.name, ("this run",), (tuple(found),))).blocks


def _folded(sections: Sequence[Section], markup: Markup) -> Iterator[str]:
    for number, section in enumerate(sections):
        body = markup.blocks(section.blocks, 3)
        title = f"<summary><h3>{text(section.title)}</h3></summary>"
        yield f"<details class='part' id='part-{number}'>{title}{body}</details>"


# ---- What the scripts bring to life. It is hidden until they run.

_BAR = """<form id="bar" class="bar" role="search" aria-label="filter of the cases" hidden>
<label class="grow">Filter <input id="q" type="search" autocomplete="off" spellcheck="false"
 placeholder="words of a case, such as float16 N4096"></label>
<label>Op <select id="op"></select></label>
<label>Type <select id="dtype"></select></label>
<label>Show <select id="show">
<option value="">all variants</option><option value="best">the fastest of each</option>
<option value="ours">ours</option><option value="behind">ours where behind</option>
<option value="untimed">without a time</option><option value="warned">with a warning</option></select></label>
<label>Units <select id="unit"><option value="">as they fit</option><option>ns</option><option>us</option>
<option>ms</option><option>s</option></select></label>
<button id="reset" type="button">Clear</button>
<label class="button">Compare… <input id="second" type="file" accept=".html,.json"></label>
<button id="theme" type="button" aria-pressed="false">Dark</button>
</form>"""
_EXPLORER = """<section id="cases"><h2>Cases</h2>
<noscript><p>Filters, the plot and the details of a case need JavaScript. All tables and figures stand below.</p>
</noscript>
<p id="count" aria-live="polite"></p>
<div id="plot" hidden><p class="legend"><label>Plot <select id="metric"></select></label> <span id="legend"></span></p>
<div id="chart"></div><p id="hover" role="status"></p></div>
<div id="table"></div></section>"""
_DRAWER = """<dialog id="drawer" aria-labelledby="drawer-title"><div class="top"><h2 id="drawer-title"></h2>
<button id="close" type="button">Close</button><nav id="drawer-parts" aria-label="parts of the details"></nav></div>
<div id="drawer-body"></div></dialog>"""
