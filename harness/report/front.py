"""What a page says first: the answers that a reader comes for, each in a line, and who is behind whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import source
from harness.model import Run
from harness.ops.catalogue import LOADED
from harness.report import overview
from harness.report.frame import Line
from harness.report.summary import Standing, Summary, summarise
from harness.report.tree import Block, Details, Items, Note, Section, Table, text_column
from harness.units import plural

TITLE, EACH, FASTEST, VARIANTS = "Summary", "Each op", "Fastest variants", "Variants and rows"
_MOST_BEHIND = 8
"""Comparisons that stand on the first screen; the rest is folded."""
_MOST_NAMED = 24
"""Comparisons that are named beside a variant that is the fastest there."""
_MOST_SHOWN = 40
"""Rows of a table that isn't folded."""
_FEW_OPS = 2
"""Ops whose variants aren't folded."""
_REVISION = 12
_ROWS = (
    "A row, such as R2, is a technique of the text that a scenario names as its source. The variants of the role "
    "'published' are what the text shows, before or after the technique. A baseline is PyTorch as users write it, a "
    "peer another library, a control shows what the machine does, ours are kernels of this collection or of a plug-in."
)


def blocks(run: Run) -> Iterator[Block]:
    """The summary of a run: one line an answer, then the comparisons in which ours is behind."""
    found = summarise(run)
    yield Items(tuple(_answers(run, found)))
    yield from behind(found)


def headline(run: Run) -> Iterator[Block]:
    """The summary of a run for a console: the sentences, and the comparisons in which ours is behind."""
    found = summarise(run)
    if found.whole.compared:
        yield from map(Note, overview.headline(found))
        yield from behind(found)


def behind(found: Summary) -> Iterator[Block]:
    """The comparisons in which ours is behind, the worst first; all but the first few are folded."""
    losses = found.whole.behind
    if losses:
        yield overview.behind(losses[:_MOST_BEHIND])
    if rest := losses[_MOST_BEHIND:]:
        yield Details(f"Behind in {len(rest)} more", (overview.behind(rest),))


def _answers(run: Run, found: Summary) -> Iterator[Note]:
    labels = ("Behind", "Faster", "Ceiling") if found.whole.gains else ("Behind", "Ceiling")
    for label, sentence in zip(labels, overview.headline(found), strict=False):
        yield Note(sentence, label=label)
    yield Note(_trust(found), label="Trust")
    if found.whole.every:
        yield Note(_fastest(found.whole.every), label="Fastest")
    case = _worst(found)
    if case is None:
        return
    file = kernel(case.case.op)
    if run.header.git_revision and file:
        command = f"git show {run.header.git_revision[:_REVISION]}:{file}"
        changed = ", but for uncommitted changes" if run.header.git_dirty else ""
        told = f"the code as it was measured{changed}; {VARIANTS} names the files of all ops"
        yield Note(told, "", "Source", command)
    explain = f"harness explain '{case.case.id}' --run ."
    yield Note("in this folder: what bounds the worst case, and what a remedy could save", "", "Why", explain)
    told = "in this folder: what has changed since the run in the folder BEFORE"
    yield Note(told, "", "Changed", "harness compare BEFORE .")


def _trust(found: Summary) -> str:
    outcomes = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in found.whole.outcomes)
    told = [f"{outcomes}; the results of all timed cases were checked" if outcomes else "No case has a result"]
    if found.noise is not None:
        told.append(overview.warnings(found)[0].text.rstrip("."))
    labels = [note.label.partition(", such as")[0] for note in found.warnings]
    codes = ", ".join(f"{label} 1 case" if label.endswith(" in") else label for label in labels)
    told.append(f"Warnings: {codes}" if codes else "No warnings")
    return ". ".join(told)


def _fastest(standings: Sequence[Standing]) -> str:
    """Which variant is the fastest where: the usual one by number, the other ones by comparison."""
    wins: dict[str, list[str]] = defaultdict(list)
    for standing in standings:
        wins[standing.best.case.variant].append(standing.group)
    usual, *others = sorted(wins, key=lambda name: -len(wins[name]))
    told = [f"{usual} in {len(wins[usual])} of {plural(len(standings), 'comparison')}"]
    for name in others:
        named, more = wins[name][:_MOST_NAMED], len(wins[name]) - _MOST_NAMED
        told.append(f"{name} in {len(wins[name])}: {', '.join(named)}" + (f" and {more} more" if more > 0 else ""))
    return "; ".join(told)


def _worst(found: Summary) -> Line | None:
    """The case to look at: ours where it is farthest behind, else where it is farthest from the ceiling."""
    if found.whole.worst and (found.whole.behind or not found.whole.lowest):
        return found.whole.worst.ours
    return found.whole.lowest


# ---- Behind the first screen.


def each_op(run: Run) -> Section:
    """A row for each op."""
    return Section(EACH, (overview.by_op(summarise(run).ops),))


def fastest(run: Run) -> Iterator[Section]:
    """The fastest variant of each comparison."""
    if standings := summarise(run).whole.every:
        yield Section(FASTEST, (folded(overview.best(standings), plural(len(standings), "comparison")),))


def folded(table: Table, title: str) -> Block:
    """The table, folded under the title if it is long."""
    rows = max((len(column.cells) for column in table.columns), default=0)
    return table if rows <= _MOST_SHOWN else Details(title, (table,))


def variants(run: Run) -> Iterator[Section]:
    """What each variant does and which rows it reproduces, an op a table, with the files of its code."""
    by_op: dict[str, dict[str, str]] = defaultdict(dict)
    for standing in summarise(run).whole.every:
        for line in standing.lines:
            by_op[line.case.op].setdefault(line.case.variant, line.role)
    if not by_op:
        return
    files = {op: kernel(op) for op in by_op}
    made = [Section(f"{op}: {files[op]}" if files[op] else op, (_legend(op, own),)) for op, own in by_op.items()]
    few = len(made) <= _FEW_OPS
    yield Section(VARIANTS, (Note(_ROWS), *(made if few else [Details(plural(len(made), "op"), tuple(made))])))


def _legend(op: str, roles: dict[str, str]) -> Table:
    known = LOADED[op].variants if op in LOADED else {}
    own = [known.get(name) for name in roles]
    return Table(
        (
            text_column("variant", roles),
            text_column("role", roles.values()),
            text_column("rows", (", ".join(each.rows) if each else "" for each in own)),
            text_column("what it does", (each.summary if each else "" for each in own)),
        )
    )


def kernel(op: str) -> str:
    """The file that a reader of an op's numbers looks at first, in the repository: its kernel, else its own file."""
    file = LOADED[op].file if op in LOADED else None
    if file is None:
        return ""
    root = Path(source.__file__).parent.parent
    try:
        read = source.to_read(file)
    except OSError:  # a user's file, which is gone since it was loaded
        return ""
    own = next((path for path in read if path.name == f"{op}.cu"), read[0])
    return own.relative_to(root).as_posix() if own.is_relative_to(root) else ""
