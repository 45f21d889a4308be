"""Write reports/h200/rows.md, all rows of the five texts on one page, from the committed runs and reports/rows.yaml.

The table of rows in scenarios/README.md is written, too. With --check nothing is written, and the exit code is 1 if a
page isn't as it would be written, if a row lacks other things than the register says, or if the register doesn't say
why an outcome isn't "agrees". With --release it is also 1 if a row lacks anything, or if a figure isn't from a finished
run of today's code without uncommitted changes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from committed import ROOT, RUNS
from rows import TODAY, Answer, Figure, Register, Row, read, told
from tables import table
from why import Reason, reasons

from harness.report.claim_tables import how, interval, interval_over, measured
from harness.report.claims import VERDICTS
from harness.report.text import cell
from harness.units import plural

PAGE = RUNS / "rows.md"
LIST = ROOT / "scenarios" / "README.md"
MARK = re.compile(r"(<!-- rows -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
NOT_RUN = "no run of today's code yet"
HEAD = ("row", "the text says", "before -> after", "measured", "95% interval", "verdict", "why", "run")
INTRODUCTION = """\
Five public texts describe techniques that make GPU code faster; [scenarios/README.md](../../scenarios/README.md) names
them. Each technique is a row here, with a line for each figure of its text. A text's figure is of the text's own
hardware; the measured one is of an H200.

- **before -> after**: the variants without the technique and with it. A figure is of the claim in its scenario, whose
  report says which variants it compares.
- **verdict**: it **agrees** if the whole interval is as the text says, and **disagrees** if nothing of the interval is.
  Otherwise it **can't tell**: part of the interval is as the text says, or there is no interval, or the cases differ,
  and then the numbers of cases stand there. A dash: the text says nothing that could be true or false.
- **95% interval**: over fresh processes where the run has several, else over what one process measured. With **one
  process** the interval holds the noise within that process alone, and another process may lie outside of it. Of
  several cases it goes from the lowest bound to the highest.
- **run**: where the figures are from, and whether it has today's code. Of several runs, today's code comes first, then
  several processes, then the newest. A run of older code, with uncommitted changes, or that wasn't finished, is no
  evidence until it is made again.
"""


def page(register: Register) -> str:
    """The page of all rows."""
    lines = table(HEAD, (line for row in register.rows for line in _lines(register, row)), left=len(HEAD))
    lacking = [f"- {row.name}: {told(row.lacks)}" for row in register.rows if row.lacks]
    parts = [
        f"# The rows of the texts: {_machine(register)}",
        _summary(register),
        INTRODUCTION.rstrip(),
        "\n".join(lines),
    ]
    if lacking:
        parts.append("## What rows lack\n\n" + "\n".join(lacking))
    parts.append("## Why techniques lose, by counters\n\n" + "\n".join(map(_reason, reasons())))
    return "\n\n".join([*parts, "Made by `python scripts/make_rows.py`; a test compares it with the runs."]) + "\n"


def _reason(reason: Reason) -> str:
    """A reason of why.yaml, with the figures of its run."""
    run = f"[{reason.run}]({reason.run}/report.md)"
    return f"- **{reason.row}** `{reason.op}/{reason.variant}` over `{reason.over}` in {run}: {reason.text}"


def _machine(register: Register) -> str:
    return next(iter(register.runs.values())).header.machine.name


def _summary(register: Register) -> str:
    """How many figures have which verdict, and how many of them are from runs that are evidence."""
    answers = register.answers.values()
    counts = Counter(answer.comparison.verdict for answer in answers)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    sound = sum(answer.state == (TODAY,) for answer in answers)
    figures = sum(len(row.figures) for row in register.rows)
    return (
        f"{plural(len(register.rows), 'row')}, {plural(figures, 'figure')}; verdicts: {verdicts}. {sound} of "
        f"{len(answers)} measured figures are from a finished run of today's code without uncommitted changes."
    )


def _lines(register: Register, row: Row) -> Iterator[Sequence[str]]:
    change = f"`{row.before}` -> `{row.after}`" if row.op else ""
    nothing = Figure("-", unanswered="it isn't built yet" if row.lacks else "the text gives no figure")
    for number, figure in enumerate(row.figures or (nothing,)):
        answer = register.answers.get((row.name, figure.text))
        name, variants = (f"**{row.name}** {row.technique}", change) if number == 0 else (row.name, "")
        yield tuple(map(_safe, (name, figure.text, variants, *_answered(figure, answer))))


def _answered(figure: Figure, answer: Answer | None) -> Sequence[str]:
    """What was measured, its interval, the verdict, why, and the run."""
    if answer is None:
        missing = "not measured" if figure.unanswered else NOT_RUN
        return missing, "", "-", figure.unanswered, ""
    found = answer.comparison
    way = how(found)
    over = f" ({interval_over(found)})" if interval_over(found) else ""
    return (
        cell(measured(found)) + (f" {way}" if way.startswith("by") else ""),
        f"{cell(interval(found))}{over}",
        found.told or "-",
        figure.why(found.verdict),
        f"[{answer.run}]({answer.run}/report.md) of {answer.day}: {told(answer.state)}",
    )


def _safe(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def listed(text: str, rows: Sequence[Row]) -> str:
    """The page with the list of rows, its table of them as the register has it."""
    lines = table(("row", "technique", "the text claims"), ((r.name, r.technique, r.claims) for r in rows), left=3)
    return MARK.sub(lambda match: match[1] + "\n".join(lines) + match[2], text)


# ---- What is wrong.


def problems(register: Register) -> Iterator[str]:
    """What is otherwise than the register says, and what it leaves out."""
    for row in register.rows:
        lacks = register.lacks(row)
        if new := [what for what in lacks if what not in row.lacks]:
            yield f"{row.name}: lacks {told(new)}"
        if there := [what for what in row.lacks if what not in lacks]:
            yield f"{row.name}: has {told(there)} now; remove it from 'lacks' in reports/rows.yaml"
        for figure in row.figures:
            scenarios = Counter(definition.name for definition, _ in register.claims(row, figure))
            if several := [name for name, count in scenarios.items() if count > 1]:
                yield f"{row.name}: '{figure.text}' may be several claims of {told(several)}: give 'over' or 'where'"
            answer = register.answers.get((row.name, figure.text))
            verdict = answer.comparison.verdict if answer else None
            if verdict in ("disagrees", "can't tell") and not figure.why(verdict):
                yield f"{row.name}: '{figure.text}': say in reports/rows.yaml why the verdict is \"{verdict}\""


def unreleasable(register: Register) -> Iterator[str]:
    """What must not be so in a release."""
    for row in register.rows:
        if lacks := register.lacks(row):
            yield f"{row.name}: lacks {told(lacks)}"
        for figure in row.figures:
            answer = register.answers.get((row.name, figure.text))
            if answer is None and not figure.unanswered:
                yield f"{row.name}: '{figure.text}' has no run"
            if answer and answer.state != (TODAY,):
                yield f"{row.name}: '{figure.text}' is from {answer.run}: {told(answer.state)}"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check or --release say what isn't as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something is wrong")
    parser.add_argument("--release", action="store_true", help="the same, and hold all runs to what a release needs")
    options = parser.parse_args(arguments)
    check = options.check or options.release
    register = Register(read())
    wrong = [*problems(register), *(unreleasable(register) if options.release else ())]
    written = {PAGE: page(register), LIST: listed(LIST.read_text(encoding="utf-8"), register.rows)}
    for file, text in written.items():
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        if text != before and check:
            wrong.append(f"{file.relative_to(ROOT)}: differs from the runs; run scripts/make_rows.py")
        elif text != before:
            file.write_text(text, encoding="utf-8")
            print(f"{file.relative_to(ROOT)}: written")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
