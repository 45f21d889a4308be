"""Print, as arguments of `harness run`, the cases of figures in rows.md that are to be measured again.

    python scripts/figure_cases.py bias dropout | xargs harness run --repeat 3 --output reports/h200/row_dropout

A figure is to be measured again if its run has older code, had uncommitted changes or wasn't finished. RUN...: only
figures from these committed runs. Such cases are a part of what the runs measured, so several processes of each cost
less than one process of all. make_rows.py takes the new figures, since they are of today's code. --missing: figures
that no run has answered yet, in place of all that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence

from rows import TODAY, Register, read

from harness.model import Case
from harness.scenario.definition import Definition


def arguments(register: Register, runs: Sequence[str] = ()) -> Iterator[str]:
    """Names of scenario files, each once, and an --only for each case. Raises SystemExit for a run without answers."""
    answering = {answer.run for answer in register.answers.values()}
    if unknown := [run for run in runs if run not in answering]:
        raise SystemExit(f"{', '.join(unknown)}: answers no figure; the runs that do: {', '.join(sorted(answering))}")
    asked = [
        answer for answer in register.answers.values() if answer.state != (TODAY,) and (not runs or answer.run in runs)
    ]
    lines = [line for answer in asked for one in answer.comparison.found for line in one.lines]
    yield from _words((register.scenarios[line.scenario.name], line.case) for line in lines)


def missing(register: Register, rows: Sequence[str] = ()) -> Iterator[str]:
    """The same for the figures of rows that no run has answered; of all rows if none is named.

    Raises SystemExit for a row that isn't in the register.
    """
    if unknown := {*rows} - {row.name for row in register.rows}:
        raise SystemExit(f"{', '.join(sorted(unknown))}: no row; rows have names such as {register.rows[0].name}")
    yield from _words(
        pair
        for row in register.rows
        for figure in row.figures
        if (row.name, figure.text) not in register.answers and (not rows or row.name in rows)
        for pair in register.needed(row, figure)
    )


def _words(cases: Iterable[tuple[Definition, Case]]) -> Iterator[str]:
    """Arguments of `harness run` for cases of scenarios."""
    found = [*cases]
    yield from dict.fromkeys(definition.file.stem for definition, _ in found)
    for case in dict.fromkeys(case.id for _, case in found):
        yield from ("--only", case)


def main(words: Sequence[str]) -> None:
    """Print one argument a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="RUN", help="folders of reports/h200; names of rows with --missing")
    parser.add_argument("--missing", action="store_true", help="figures that no run has answered yet")
    asked = parser.parse_args(words)
    print(*(missing if asked.missing else arguments)(Register(read()), asked.names), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
