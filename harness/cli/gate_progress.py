"""Progress of a gate on standard error: what is compared, what was decided after how many pairs, what is still open."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

import typer
from rich.console import Console

from harness import units
from harness.cli.console import open_console
from harness.cli.progress import Bar, outcome
from harness.gate.observer import Comparing
from harness.gate.records import Decision, Revision, Side, Stage
from harness.model import Job, Measurement

_MOST_NAMED = 5


@contextmanager
def follow(stopped: str) -> Iterator[Teller]:
    """Show the progress of a gate on standard error.

    Ctrl-C ends the command with 130, after the message `stopped`, and SIGTERM with 143. Worktrees and processes are
    gone by then.
    """

    def leave(number: int, _frame: object) -> None:
        raise typer.Exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        with Teller(open_console(err=True)) as teller:
            yield teller
    except KeyboardInterrupt:
        typer.echo(stopped, err=True)
        raise typer.Exit(128 + signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


class Teller:
    """Prints lines that stay: on a terminal with a bar below them, elsewhere with a line for each pair."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(console) if console.is_terminal else None
        self._labels: dict[Side, str] = {}
        self._pairs = self._pair = 0
        self._began = time.monotonic()
        self._complained: set[tuple[str, Side]] = set()

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.__exit__()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Show what takes time in the bar, if there is one: a log would fill up."""
        if self._bar:
            self._bar.note(text)

    def comparing(self, compared: Comparing) -> None:
        """Print what is compared with what, of which repository, and what isn't compared."""
        base, now, used = compared.base, compared.now, compared.used
        self._labels = {"base": base.label, "now": now.label}
        count = units.plural(compared.cases, "case")
        where = f" in {base.repository}" if base.repository else ""
        self.say(f"comparing {_named(now)} with {_named(base)}{where}: {count} on {compared.machine.name}")
        if used and used.shared:
            self.say(f"not compared, since both sides use the same files: {', '.join(used.shared[:_MOST_NAMED])}")
        elif used and used.same:
            files = units.plural(len(used.now), "file")
            end = "nothing is measured; --always measures" if compared.same else "every difference is noise"
            self.say(f"both sides use the same code ({files}): {end}")

    def planned(self, stage: Stage, pairs: int, measurements: int) -> None:
        """Start a new bar for the stage."""
        self._pairs, self._pair, self._began = pairs, 0, time.monotonic()
        if self._bar:
            self._bar.planned(measurements, 0)
        else:
            told = units.plural(measurements, "measurement")
            self.say(f"{stage}: {units.plural(pairs, 'pair')} of processes, {told}")

    def started(self, job: Job, side: Side) -> None:
        """Show the case in the bar."""
        if self._bar:
            self._bar.note(f"{job.case.id} ({self._labels[side]}, pair {self._pair + 1} of {self._pairs})")

    def finished(self, measurement: Measurement, side: Side) -> None:
        """Advance the bar. A case that isn't ok is printed once for each side."""
        if self._bar:
            self._bar.advance()
        if measurement.status != "ok" and (key := (measurement.case.id, side)) not in self._complained:
            self._complained.add(key)
            self.say(f"{outcome(measurement, None)} ({self._labels[side]})")

    def paired(self, first: Side) -> None:
        """Print that a pair is done, where there is no bar."""
        self._pair += 1
        if not self._bar:
            elapsed = time.monotonic() - self._began
            self.say(f"  pair {self._pair} of {self._pairs} after {elapsed:.0f} s, {self._labels[first]} first")

    def settled(self, pairs: int, decisions: Mapping[str, Decision], going: Sequence[str]) -> None:
        """Print what the pairs decided, and what they left open."""
        outcomes = [decision.outcome for decision in decisions.values()]
        cases = len(decisions.keys() | set(going))
        counts = {
            f"of {cases} clear": outcomes.count("ok") + outcomes.count("improved"),
            "slower": outcomes.count("regressed"),
            # Cases that go on to the next look are inconclusive until then.
            "undecided": sum(d.outcome == "inconclusive" and key not in going for key, d in decisions.items()),
            "to confirm": len(going),
        }
        told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        named = f": {', '.join(going[:_MOST_NAMED])}{' ...' if len(going) > _MOST_NAMED else ''}" if going else ""
        self.say(f"after {units.plural(pairs, 'pair')}: {told or 'nothing to compare'}{named}")


def _named(side: Revision) -> str:
    """A side as a user knows it: its label, and its commit unless the label is the commit."""
    commit = side.revision[:10]
    known = [] if not commit or side.revision.startswith(side.label) else [commit]
    marks = ", ".join([*known, *(["changed"] if side.dirty else [])])
    return f"{side.label} ({marks})" if marks else side.label
