"""Trees of runs, limits and comparisons: one for a page, one for a console."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from harness import units
from harness.errors import brief
from harness.model import FAILED, Attachment, Limits, Machine, Result, Run, Scenario
from harness.report import (
    audit,
    claim_tables,
    claims,
    columns,
    counted,
    front,
    kernels,
    limit_tables,
    plotting,
    preface,
    range_tables,
    rank_tables,
    roofline_plot,
    sections,
    sweeps,
)
from harness.report.frame import Line, by_scenario
from harness.report.plotting import Plot
from harness.report.text import as_text
from harness.report.tree import (
    Block,
    CommandLine,
    Contents,
    Details,
    Figure,
    Items,
    Kind,
    Note,
    Page,
    Prose,
    Section,
    Table,
    Terms,
    tables,
    text_column,
)
from harness.units import plural

WARNINGS = "Warnings"
CEILINGS = "ceilings.svg"
"""The plot of the streams, among a run's plots."""
_MOST_FAILURES = 10
_OF_KERNELS = "What profilers saw of each kernel. Figures are of one launch; launches: how many a call makes."


# ---- The page of a run.


def page(run: Run, notes: Sequence[str] = ()) -> Page:
    """The page of a run: the summary, then figures, then tables, then details, most of them folded.

    notes: sentences that it begins with, such as that results were measured with older code.
    """
    plots, left_out = plotting.plan(run)
    told: set[str] = set()
    scenarios = list(by_scenario(run))
    parts: list[Section] = [front.each_op(run)] if run.results else []
    parts += _figures(scenarios, plots, left_out)
    parts += [_section(scenario, lines, run, told) for scenario, lines in scenarios]
    parts += audit.section(counted.of_run(run))
    parts += front.fastest(run)
    if warnings := preface.warnings(run):
        parts.append(Section(WARNINGS, (Items(tuple(warnings)),)))
    parts += _details(run)
    roofline = {roofline_plot.TITLE: roofline_plot.HINT} if any(plot.roofs for plot in plots) else {}
    if terms := _terms(parts, roofline):
        parts.append(Section("How to read the tables", (terms,)))
    origin = (preface.machine(run.header.machine), CommandLine(preface.command(run)), Note(preface.provenance(run)))
    parts.append(Section("Machine and command", origin))
    first = Section(front.TITLE, tuple(front.blocks(run)))
    contents = Contents(tuple(part.title for part in parts))
    return Page(preface.title(run), (*_ahead(run, notes), first, contents, *parts))


def _figures(scenarios: Sequence[tuple[Scenario, list[Line]]], plots: Sequence[Plot], left_out: int) -> list[Section]:
    """The section of figures, a part a scenario; nothing where there is no figure."""
    made: list[Block] = []
    for scenario, lines in scenarios:
        drawn = [Figure(plot.path, plot.alt) for plot in plots if plot.scenario == scenario.name]
        if own := [*drawn, *sections.figures(lines)]:
            made.append(Section(scenario.title or scenario.name, tuple(own)))
    if left_out:
        made.append(
            Note(
                f"{plural(left_out, 'more figure')} {'was' if left_out == 1 else 'were'} left out to keep the report "
                "short. Their numbers are in the tables and in results.csv; a run of fewer scenarios draws them."
            )
        )
    return [Section("Figures", tuple(made))] if made else []


def _details(run: Run) -> Iterator[Section]:
    """What few readers need, folded."""
    if seen := tuple(kernels.tables(run.attachments)):
        yield Section("Kernels", (Note(_OF_KERNELS), Details("Each case", seen)))
    if ranges := tuple(range_tables.blocks(run.attachments)):
        yield Section("Ranges", (Note(range_tables.MEANING), Details("Each case", ranges)))
    if ranks := tuple(rank_tables.blocks(run.attachments)):
        yield Section("Ranks", (Note(rank_tables.MEANING), Details("Each case", ranks)))
    if attached := [attachment for attachment in run.attachments if attachment.files]:
        yield Section("Files that tools left", (front.folded(_files(attached), plural(len(attached), "case")),))
    if run.limits:
        found = tuple(_limits_blocks(run.limits, f"{plotting.FOLDER}/{CEILINGS}"))
        yield Section("What the machine can do", (Details("Streams, products and links", found),))
    yield from front.variants(run)


def _ahead(run: Run, notes: Sequence[str]) -> Iterator[Note]:
    """What a reader must know before any number."""
    yield Note(f"{run.header.machine.name}, {run.header.started}: {preface.outcome(run)}.")
    if processes := preface.processes(run):
        yield Note(processes)
    if missing := preface.unmeasured(run):
        yield Note(
            f"{plural(missing, 'planned case')} {'has' if missing == 1 else 'have'} no result. The run's command with "
            "--resume and the same --output measures them.",
            "warning",
            "This run isn't complete",
        )
    for loss in run.losses:
        yield Note(loss, "warning", "Lost")
    for note in notes:
        yield Note(note, "warning", "Code")


def _files(attached: Sequence[Attachment]) -> Table:
    """The files of each attachment, as paths in the folder of the run."""
    return Table(
        (
            text_column("case", (attachment.case for attachment in attached), code=True),
            text_column("tool", (attachment.tool for attachment in attached)),
            text_column("files", (", ".join(attachment.files) for attachment in attached), code=True),
        )
    )


def _section(scenario: Scenario, lines: list[Line], run: Run, told: set[str]) -> Section:
    """The section of a scenario. told: sentences that the page has already, each of which a page needs once."""
    sweep = sweeps.of(scenario.curve, lines, scenario.plot)
    # The reasons are told with the stops.
    every = columns.table(lines, errors=not sweep)
    cases = f"All {plural(len(lines), 'case')}"
    blocks: list[Block] = [Prose(scenario.shows.strip())] if scenario.shows.strip() else []
    blocks.append(Note(preface.origin(scenario)))
    blocks += sweep.tables if sweep else [front.folded(every, cases)]
    if sweep and sweep.stops:
        blocks.append(Section("Where variants stop", (sweeps.stop_table(sweep.over, sweep.stops),)))
    blocks += sections.sections(lines)
    if found := claims.comparisons(scenario, run):
        sentences = [text for text in claim_tables.explained(found, run.header.machine.name) if text not in told]
        told.update(sentences)
        blocks.append(Section("Claims", (*map(Note, sentences), claim_tables.table(found))))
    if sweep:
        blocks.append(Details(cases, (every,)))
    return Section(scenario.title or scenario.name, tuple(blocks))


def _terms(blocks: Sequence[Block], more: Mapping[str, str] = MappingProxyType({})) -> Terms | None:
    """How to read the columns that are shown, each explanation once. more: other terms, which come last."""
    heads: dict[str, dict[str, None]] = defaultdict(dict)
    for table in tables(blocks):
        for column in as_text(table).columns:
            if column.of.hint:
                # The scale of a column is nothing to explain.
                heads[column.of.hint][column.head.partition(" (")[0]] = None
    pairs = (*((", ".join(own), hint) for hint, own in heads.items()), *more.items())
    return Terms(pairs) if pairs else None


# ---- What a console shows of a run.


def screen(run: Run) -> Page:
    """The summary of a run and its warnings, the tables, what failed, and how many cases ended in which way.

    A title has what is the same in every row of its table, which would take the room of columns that differ.
    If a scenario's curve has a line for each variant, it has a table for each dtype, which also shows failed cases.
    """
    told: set[str] = set()
    ahead = (*front.headline(run), *_warnings(run))
    blocks: list[Block] = [Section("", ahead)] if ahead else []
    for scenario, lines in by_scenario(run):
        sweep = sweeps.of(scenario.curve, lines, scenario.plot)
        told_of = (*claim_tables.notes(claims.comparisons(scenario, run)), *sections.verdicts(lines))
        if sweep:
            told.update(line.case.id for line in lines if line.result.status not in FAILED)
            stops = (Section("", tuple(sweeps.stop_notes(sweep.over, sweep.stops))),) if sweep.stops else ()
            blocks.append(Section(scenario.title or scenario.name, (*sweep.tables, *stops, *told_of)))
        else:
            common, table = columns.brief(lines)
            title = ": ".join(filter(None, [scenario.title or scenario.name, ", ".join(common)]))
            blocks.append(Section(title, (table, *told_of)))
    blocks += audit.section(counted.of_run(run))
    failed = [result for result in run.results if result.status != "ok" and result.case.id not in told]
    blocks.append(Section("", (*_failures(failed), *_closing(run))))
    return Page("", tuple(blocks))


def _failures(results: Sequence[Result]) -> Iterator[Note]:
    """Why cases have no time, for the first few of them."""
    for result in results[:_MOST_FAILURES]:
        kind: Kind = "failure" if result.status in FAILED else "warning"
        yield Note(brief(result.error or ""), kind, result.status.replace("_", " "), result.case.id)
    if len(results) > _MOST_FAILURES:
        yield Note(f"and {len(results) - _MOST_FAILURES} more without a time, see the tables")


def _warnings(run: Run) -> Iterator[Note]:
    for note in preface.warnings(run):
        yield replace(note, label=f"warning {note.label}")


def _closing(run: Run) -> Iterator[Note]:
    if processes := preface.processes(run):
        yield Note(processes)
    if run.limits and run.limits.peak:
        drift = limit_tables.drift(run.limits)
        yield Note(f"peak: a copy at {units.rate(run.limits.peak)}" + (f", {drift} at the end" if drift else ""))
    yield Note(f"{run.header.machine.name}: {preface.outcome(run)}", "strong")


def screen_of_verdicts(run: Run) -> Page:
    """What ops say of the scenarios of a run, and nothing else, for a console."""
    every = [Section(own.title or own.name, tuple(sections.verdicts(lines))) for own, lines in by_scenario(run)]
    return Page("", tuple(section for section in every if section.blocks))


# ---- Bytes by counters, of several runs.


def page_of_audit(runs: Mapping[str, Run]) -> Page | None:
    """The audit of all cases with counters, a section an op; None if there is none.

    runs: of one machine, by the name of their folders. If several runs have a case, the run that started last counts.
    """
    newest: dict[str, tuple[str, counted.Counted]] = {}
    for name, run in sorted(runs.items(), key=lambda item: item[1].header.started):
        newest |= {found.line.case.id: (name, found) for found in counted.of_run(run)}
    if not newest:
        return None
    by_op: dict[str, list[counted.Counted]] = defaultdict(list)
    for _, found in newest.values():
        by_op[found.line.case.op].append(found)
    names = dict.fromkeys(name for name, _ in newest.values())
    origin = ", ".join(f"[{name}]({name}/report.md) of {runs[name].header.started[:10]}" for name in names)
    by_name = [Section(op, audit.blocks(found)) for op, found in sorted(by_op.items())]
    every = [found for _, found in newest.values()]
    machine = next(iter(runs.values())).header.machine.name
    blocks: list[Block] = [*audit.summary(every), *by_name]
    if terms := _terms(blocks):
        blocks.append(Section("How to read the tables", (terms,)))
    return Page(f"{audit.TITLE}: {machine}", (*blocks, Prose(f"Runs: {origin}.")))


# ---- Limits alone.


def page_of_limits(machine: Machine, limits: Limits, figure: str) -> Page:
    """What a machine can do, as a page. figure: path of the plot of the streams."""
    blocks = _limits_blocks(limits, figure)
    return Page("What the machine can do", (*blocks, Section("Machine", (preface.machine(machine),))))


def screen_of_limits(machine: Machine, limits: Limits) -> Page:
    """What a machine can do, for a console."""
    summary = limit_tables.summary(limits)
    found: tuple[Block, ...] = (*limit_tables.tables(limits), Section("", (summary,)))
    return Page("", (Section(f"What {machine.name} can do", found),))


def _limits_blocks(limits: Limits, figure: str) -> Iterator[Block]:
    summary = limit_tables.summary(limits)
    if summary.pairs:
        yield summary
    yield from limit_tables.tables(limits)
    if limits.points:
        yield Figure(figure, "Bandwidth of plain streams by mix and size")
