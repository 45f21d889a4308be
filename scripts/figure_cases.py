"""Print, as arguments of `harness run`, the cases of figures in rows.md that are to be measured again.

    python scripts/figure_cases.py bias dropout | xargs harness run --repeat 3 --output reports/h200/row_dropout

A figure is to be measured again if its run has older code, had uncommitted changes or wasn't finished. RUN...: only
figures from these committed runs. Such cases are a part of what the runs measured, so several processes of each cost
less than one process of all. make_rows.py takes the new figures, since they are newer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from rows import TODAY, Register, read


def arguments(register: Register, runs: Sequence[str] = ()) -> Iterator[str]:
    """Names of scenario files, each once, and an --only for each case. Raises SystemExit for a run without answers."""
    answering = {answer.run for answer in register.answers.values()}
    if unknown := [run for run in runs if run not in answering]:
        raise SystemExit(f"{', '.join(unknown)}: answers no figure; the runs that do: {', '.join(sorted(answering))}")
    asked = [
        answer for answer in register.answers.values() if answer.state != (TODAY,) and (not runs or answer.run in runs)
    ]
    lines = [line for answer in asked for one in answer.comparison.found for line in one.lines]
    yield from dict.fromkeys(register.scenarios[line.scenario.name].file.stem for line in lines)
    for case in dict.fromkeys(line.case.id for line in lines):
        yield from ("--only", case)


def main(words: Sequence[str]) -> None:
    """Print one argument a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="folders of reports/h200")
    print(*arguments(Register(read()), parser.parse_args(words).runs), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
