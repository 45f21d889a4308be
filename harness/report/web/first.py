"""The first screen of the page: what was measured where, the answer, and whether it can be believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness import units
from harness.metrics import METRICS
from harness.model import Run
from harness.report import build, front, overview, plotting, preface, sections
from harness.report.frame import Line, by_scenario
from harness.report.plotting import Plot
from harness.report.summary import Standing, Standings, Summary, summarise
from harness.report.tree import Block, Details, Figure, Items, Note, Table, figures_in
from harness.report.web.markup import Markup, text

_MOST_BEHIND = 8
"""Comparisons that the first screen names; the rest is a click away."""
_MOST_FIGURES = 2
"""Figures of the worst op; the section of figures has all of them."""
TOLD = frozenset({front.TITLE, front.EACH, build.WARNINGS})
"""Sections of a report that the first screen tells in its own way."""
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
    return f"<h1>{text(preface.title(run))}</h1><ul class='facts'>{items}</ul>"


def answer(summary: Summary, markup: Markup) -> str:
    """The sentence, and its numbers where the eye finds them."""
    told = " ".join(overview.headline(summary))
    found = _cards(summary, markup)
    cards = "".join(f"<div><dt>{label}</dt><dd>{value}</dd><dd>{about}</dd></div>" for label, value, about in found)
    title = "<h2 class='unseen'>The answer</h2>"
    return f"<section id='answer'>{title}<p>{text(told)}</p><dl class='cards'>{cards}</dl></section>"


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
        noise, widest = METRICS["noise"].written, summary.noisiest
        most = markup.link(widest.case.id, noise(widest.values["noise"] or 0.0))
        cards.append(("noise of a time", f"<b>{noise(summary.noise)}</b>", f"in the median case, at most {most}"))
    return cards


def ops(summary: Summary, markup: Markup) -> str:
    """A row for each op; nothing where no case has a result."""
    return _part("ops", front.EACH, markup.table(overview.by_op(summary.ops), "each op")) if summary.ops else ""


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
    """What to know before a number is believed: each warning once with its count, and folded what to do about it."""
    items = (*notes, *summary.warnings)
    if not items:
        return _part("trust", "Can it be believed?", "<p>No warnings.</p>")
    alike = {note.label: [other for other in items if other.label == note.label] for note in items}
    blocks: list[Block] = [Items(tuple(replace(own[0], advice="") for own in alike.values()))]
    for label, (_, *rest) in alike.items():
        if rest:
            blocks.append(Details(f"{label}: {len(rest)} more", (Items(tuple(rest)),)))
    if advice := [Note(note.advice, label=note.label.partition(" in ")[0]) for note in items if note.advice]:
        blocks.append(Details("What to do about the warnings", (Items(tuple(advice)),)))
    return _part("trust", "Can it be believed?", markup.blocks(blocks, 3))


def worst_plot(run: Run) -> Plot | None:
    """The plot of the worst comparison, with a bar for each variant; None where nothing is compared."""
    line = _worst_case(summarise(run).worst_op)
    return plotting.of_group(run, line.case.group) if line else None


def worst(run: Run, markup: Markup) -> str:
    """The picture of the worst comparison."""
    return _pictures("worst", "The worst comparison", filter(None, [worst_plot(run)]), markup)


def figures(run: Run, summary: Summary, markup: Markup) -> str:
    """Figures of the op that is farthest behind, or farthest from the ceiling: its own, then plots of its worst case.

    A plot of one comparison alone is left out: it looks like the picture of the worst comparison.
    """
    op = summary.worst_op
    if op is None:
        return ""
    lines = [lines for scenario, lines in by_scenario(run) if scenario.op == op.op]
    found: list[Figure | Plot] = []
    for each in lines:
        found += figures_in([*sections.figures(each), *sections.sections(each)])
    found += [plot for plot in _plots(run, op) if plot.layout != "ranking"]
    return _pictures("figures", f"The worst op: {op.op}", found[:_MOST_FIGURES], markup)


def _pictures(name: str, title: str, found: Iterable[Figure | Plot], markup: Markup) -> str:
    drawn = [markup.figure(Figure(one.path, one.alt)) for one in found if one.path in markup.pictures]
    return _part(name, title, "".join(drawn)) if drawn else ""


def _plots(run: Run, op: Standings) -> list[Plot]:
    """The plots of an op, the ones with its worst case first."""
    of_op = {scenario.name for scenario in run.header.scenarios if scenario.op == op.op}
    own = [plot for plot in plotting.plan(run)[0] if plot.scenario in of_op and plot.sort == "usual"]
    line = _worst_case(op)
    return sorted(own, key=lambda plot: line is None or line.case.id not in set(plot.rows["case"]))


def _worst_case(op: Standings | None) -> Line | None:
    """The case of ours that is farthest behind, else the one farthest from the ceiling."""
    if op is None:
        return None
    return op.worst.ours if op.worst else op.lowest


def _part(name: str, title: str, body: str) -> str:
    return f"<section id='{name}'><h2>{text(title)}</h2>{body}</section>"
