"""The first screen of the page: what was measured where, the answer, and whether it can be believed."""

from __future__ import annotations

from collections.abc import Sequence

from harness import units
from harness.metrics import METRICS
from harness.model import Run
from harness.report import build, front, overview, plotting, preface
from harness.report.summary import Standing, Standings, Summary
from harness.report.tree import Figure, Items, Note, Table
from harness.report.web.markup import Markup, text

_MOST_BEHIND = 8
"""Comparisons that the first screen names; the rest is a click away."""
TOLD = frozenset({front.TITLE, front.EACH, build.WARNINGS})
"""Sections of a report that the first screen tells in its own way."""
_MOST_SCENARIOS = 5
_REVISION = 12


def header(run: Run) -> str:
    """What was measured, where, when, with what, and how it ended."""
    machine = run.header.machine
    revision = run.header.git_revision
    changes = " with uncommitted changes" if run.header.git_dirty else ""
    facts = [
        machine.name,
        run.header.started.replace("T", " ")[:16],
        *(f"{name} {version}" for name, version in machine.versions if name == "torch"),
        f"commit {revision[:_REVISION]}{changes}" if revision else "no git checkout",
        preface.outcome(run),
    ]
    items = "".join(f"<li>{text(fact)}</li>" for fact in facts)
    return f"<h1>{text(title(run))}</h1><ul class='facts'>{items}</ul>"


def title(run: Run) -> str:
    """The names of the run's scenarios, as many as a line has room for."""
    names = [scenario.name for scenario in run.header.scenarios] or [run.header.name]
    more = len(names) - _MOST_SCENARIOS
    return ", ".join(names[:_MOST_SCENARIOS]) + (f" and {more} more" if more > 0 else "")


def answer(summary: Summary, markup: Markup) -> str:
    """The sentence, and its numbers where the eye finds them."""
    told = " ".join(overview.headline(summary))
    found = _cards(summary, markup)
    cards = "".join(f"<div><dt>{label}</dt><dd>{value}</dd><dd>{about}</dd></div>" for label, value, about in found)
    return f"<section id='answer'><h2>The answer</h2><p>{text(told)}</p><dl class='cards'>{cards}</dl></section>"


def _cards(summary: Summary, markup: Markup) -> list[tuple[str, str, str]]:
    whole = summary.whole
    cards = []
    if whole.compared:
        kind = "bad" if whole.behind else "good"
        count = f"<b class='{kind}'>{len(whole.behind)} of {len(whole.compared)}</b>"
        cards.append(("behind a rival", count, "by more than 1%, beyond the noise"))
    for gain in whole.gains:
        low, high = gain.ratio.low, gain.ratio.high
        bounds = f"95%: {units.ratio(low)} to {units.ratio(high)}, " if low is not None and high is not None else ""
        about = f"{bounds}{units.plural(gain.count, 'comparison')}"
        cards.append((f"over {text(gain.over)}", f"<b>{units.ratio(gain.ratio.value)}</b>", text(about)))
    if whole.lowest:
        share = units.percent(whole.lowest.values["of_ceiling"] or 0.0)
        cards.append(("lowest share of the ceiling", f"<b>{share}</b>", markup.code(whole.lowest.case.id)))
    if summary.noise is not None and summary.noisiest:
        noise = METRICS["noise"].written
        widest = f"at most {noise(summary.noisiest.values['noise'] or 0.0)}"
        cards.append(("noise of a time", f"<b>{noise(summary.noise)}</b>", f"in the median case, {widest}"))
    return cards


def ops(summary: Summary, markup: Markup) -> str:
    """A row for each op."""
    return _part("ops", front.EACH, markup.table(overview.by_op(summary.ops), "each op"))


def behind(summary: Summary, markup: Markup) -> str:
    """Who is behind somebody, with intervals; and, folded, the rest of them and where the noise is too wide to tell."""
    found = summary.whole.behind
    if not summary.whole.compared:
        return ""
    if not found:
        body = "<p class='good'>Ours is behind nobody, beyond the noise.</p>"
    else:
        body = markup.table(overview.behind(found[:_MOST_BEHIND]), "who is behind")
    rest = found[_MOST_BEHIND:]
    body += _folded(f"{len(rest)} more", overview.behind(rest), rest, markup)
    unsure = summary.whole.unsure
    body += _folded(f"{len(unsure)} where the noise is too wide to tell", overview.behind(unsure), unsure, markup)
    return _part("behind", "Who is behind", body)


def _folded(title: str, table: Table, found: Sequence[Standing], markup: Markup) -> str:
    return f"<details><summary>{title}</summary>{markup.table(table, title)}</details>" if found else ""


def trust(summary: Summary, notes: Sequence[Note], markup: Markup) -> str:
    """What to know before a number is believed: each warning once with its count."""
    items = (*notes, *overview.warnings(summary))
    body = markup.blocks([Items(items)], 3) if items else "<p>No warnings.</p>"
    return _part("trust", "Can it be believed?", body)


def worst(run: Run, summary: Summary, markup: Markup) -> str:
    """The figure of the op that is farthest behind, or farthest from the ceiling."""
    op = summary.worst_op
    figure = _figure(run, op) if op else None
    if op is None or figure is None or figure.path not in markup.pictures:
        return ""
    return _part("worst", f"The worst op: {op.op}", markup.figure(figure))


def _figure(run: Run, op: Standings) -> Figure | None:
    """The figure with the op's worst case, else its first one."""
    of_op = {scenario.name for scenario in run.header.scenarios if scenario.op == op.op}
    own = [plot for plot in plotting.plan(run)[0] if plot.scenario in of_op and plot.sort == "usual"]
    line = op.worst.ours if op.worst else op.lowest
    shows = [plot for plot in own if line and line.case.id in set(plot.rows["case"])]
    return next((Figure(plot.path, plot.alt) for plot in [*shows, *own]), None)


def _part(name: str, title: str, body: str) -> str:
    return f"<section id='{name}'><h2>{text(title)}</h2>{body}</section>"
