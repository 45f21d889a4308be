"""Show that the gate catches real mistakes: known slowdowns of our kernels, each with its true size beside the verdict.

    python scripts/gate_mutants.py                               # all of scripts/mutants, one to two minutes a group
    python scripts/gate_mutants.py --only narrow_packs --output reports/mine/mutants

Needs a GPU, and a git checkout, whose HEAD is the base. Each scripts/mutants/<name>.patch makes a kernel slower and
leaves it correct. It says in its first lines what it does, and which cases of the scenario `ci` it concerns. Mutants
that touch no shared file form a group: one worktree has all of them, as a careless commit might. For each group:

- `harness gate --base HEAD ci` with just its cases, as a user would run it;
- apart from that, PAIRS pairs of fresh processes at a finer precision: the true slowdown, with its 95% interval.

What is found is written after each group, and kept for groups that are left out the next time.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from harness import paths, scenario, units
from harness.errors import UsageError
from harness.gate import resuming
from harness.gate.records import CaseEvidence, GateRun, share
from harness.gate.worktree import Checkout, Repository
from harness.model import Job
from harness.ops import Catalogue
from harness.processes.supervisor import Workers
from harness.stats import Mean

MUTANTS = Path(__file__).parent / "mutants"
OUTPUT = Path("reports/h200/gate")
PAIRS, PRECISION, MAX_TIME = 4, 0.0015, 0.5
AHEAD = 6  # processes that load torch while another one measures
CAUGHT_FROM = 0.02
SHARED = (
    "kernels/include/",
    "harness/collection/ops/bits.py",
    "harness/collection/ops/elementwise.py",
)  # what many ops are made of


@dataclass(frozen=True, slots=True)
class Mutant:
    """A patch that makes some cases slower. cases: globs on their ids."""

    file: Path
    text: str
    cases: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def changes_others(self) -> bool:
        """Whether it touches what many ops are made of."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        return any(line.startswith(f"+++ b/{part}") for line in lines for part in SHARED)

    @classmethod
    def read(cls, file: Path) -> Mutant:
        """The mutant in a patch: the first line says what it does, lines with `Case:` which cases it concerns."""
        text, *lines = file.read_text(encoding="utf-8").partition("\ndiff --git")[0].splitlines()
        return cls(file, text, tuple(line.removeprefix("Case: ") for line in lines if line.startswith("Case: ")))


@dataclass(frozen=True, slots=True)
class Row:
    """A case of a mutant, changes as shares of the bandwidth. change: what the gate saw. seconds: of its whole run."""

    mutant: str
    case: str
    true_change: float
    true_low: float
    true_high: float
    verdict: str
    change: float | None
    pairs: int
    exit: int
    seconds: float

    @property
    def judged(self) -> str:
        """Whether the gate did what it is there for."""
        if self.verdict == "regressed":
            return "caught" if self.true_change < 0 else "WRONG"
        return "missed" if self.true_change <= -CAUGHT_FROM else "below 2%"


def mutants(names: Sequence[str] = ()) -> list[Mutant]:
    """The mutants with these names, or all mutants."""
    found = [Mutant.read(file) for file in sorted(MUTANTS.glob("*.patch"))]
    if unknown := set(names) - {mutant.name for mutant in found}:
        raise SystemExit(f"no mutant is named {', '.join(sorted(unknown))}: see {MUTANTS}")
    return [mutant for mutant in found if not names or mutant.name in names]


def groups(chosen: Sequence[Mutant]) -> list[tuple[Mutant, ...]]:
    """Mutants that can be measured together, and each other mutant alone."""
    together = tuple(mutant for mutant in chosen if not mutant.changes_others)
    assert len({case for mutant in together for case in mutant.cases}) == sum(len(mutant.cases) for mutant in together)
    return [*([together] if together else []), *((mutant,) for mutant in chosen if mutant.changes_others)]


def cases(group: Sequence[Mutant]) -> tuple[str, ...]:
    """Globs on the ids of all cases that a group concerns."""
    return tuple(case for mutant in group for case in mutant.cases)


def jobs(group: Sequence[Mutant]) -> list[Job]:
    """Its cases of the scenario `ci`, to be timed more narrowly than the gate does."""
    catalogue = Catalogue()
    selection = scenario.Selection("cuda", only=cases(group), precision=PRECISION, max_time=MAX_TIME)
    return list(scenario.plan(scenario.load(scenario.find(["ci"]), catalogue), catalogue, selection).jobs)


def words(group: Sequence[Mutant], noise: Path, folder: Path) -> list[str]:
    """The words after `harness` that gate a group's cases of the scenario `ci`."""
    only = [word for glob in cases(group) for word in ("--only", glob)]
    # The scenario comes last: `gate ci` is a command of its own.
    return ["gate", "--base", "HEAD", "--seed", "1", "--noise", str(noise), "--output", str(folder), *only, "ci"]


def gated(group: Sequence[Mutant], root: Path, noise: Path, folder: Path) -> GateRun:
    """What the gate finds in the worktree at `root`. Ends the script with exit and reason of a gate that stopped."""
    command = [sys.executable, "-m", "harness", *words(group, noise, folder)]
    # First the worktree's own package, then the folders in which this process finds its libraries.
    path = os.pathsep.join([str(root), *filter(None, sys.path)])
    # The caches of this process, which may be named from its own folder.
    environment = os.environ | {"PYTHONPATH": path, "HARNESS_CACHE": str(paths.cache().resolve())}
    done = subprocess.run(command, cwd=root, env=environment, check=False)
    try:
        return resuming.read(folder / resuming.FILE)
    except UsageError as error:
        names = ", ".join(mutant.name for mutant in group)
        raise SystemExit(f"the gate of {names} ended with exit {done.returncode}: {error.message}") from error


def true_changes(base: Checkout, mutated: Checkout, asked: Sequence[Job]) -> dict[str, list[float]]:
    """ln(bandwidth mutated / base) of each pair, by case; which goes first is drawn."""
    draw = random.Random(1)
    order = [side for _ in range(PAIRS) for side in draw.sample((base, mutated), 2)]
    times: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    with ExitStack() as stack:
        workers = [stack.enter_context(Workers("cuda", (), side.root)) for side in order]
        for turn, side in enumerate(order):
            for ahead in workers[turn + 1 : turn + 1 + AHEAD]:
                ahead.begin()
            for job in asked:
                found = workers[turn].measure(job, turn // 2)
                if found.time is None:
                    raise SystemExit(f"{job.case.id} is {found.status} with {side.code.label}: {found.error}")
                times[side is base].setdefault(job.case.id, []).append(found.time)
            workers[turn].restart()
    return {
        case: [math.log(before / now) for before, now in zip(times[True][case], times[False][case], strict=True)]
        for case in times[True]
    }


def measured(group: Sequence[Mutant], noise: Path) -> tuple[str, list[Row]]:
    """Both measurements of a group: the device's name, and a row a case."""
    repository = Repository.find(())
    with (
        repository.worktree("HEAD", "base") as base,
        repository.worktree("HEAD", "mutant") as mutated,
        tempfile.TemporaryDirectory() as folder,
    ):
        assert mutated.root is not None  # the harness lies in this checkout
        patches = [str(mutant.file.resolve()) for mutant in group]
        subprocess.run(["git", "-C", str(mutated.root), "apply", *patches], check=True)
        made = gated(group, mutated.root, noise, Path(folder))
        changes = true_changes(base, mutated, jobs(group))
    return made.machine.name, [
        row(mutant, made, evidence, Mean.of(changes[evidence.case.id]))
        for evidence in made.cases
        for mutant in group
        if any(evidence.case.matches(glob) for glob in mutant.cases)
    ]


def row(mutant: Mutant, made: GateRun, evidence: CaseEvidence, true: Mean) -> Row:
    """What the gate says of a case beside what is true."""
    decision = evidence.decision
    return Row(
        mutant=mutant.name,
        case=evidence.case.id,
        true_change=share(true.value),
        true_low=share(true.low(0.025)),
        true_high=share(true.high(0.025)),
        verdict=decision.outcome if decision else "not decided",
        change=share(decision.estimate) if decision else None,
        pairs=len(evidence.pairs),
        exit=made.exit,
        seconds=made.seconds,
    )


def known(file: Path) -> list[Row]:
    """Rows of earlier calls."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return [_row(values) for values in csv.DictReader(lines)]


def _row(values: dict[str, str]) -> Row:
    texts = {name: values[name] for name in ("mutant", "case", "verdict")}
    numbers = {name: float(values[name]) for name in ("true_change", "true_low", "true_high", "seconds")}
    change = float(values["change"]) if values["change"] else None
    return Row(**texts, **numbers, change=change, pairs=int(values["pairs"]), exit=int(values["exit"]))  # type: ignore[arg-type]


def save(rows: Sequence[Row], folder: Path, device: str) -> None:
    """Write mutants.csv and mutants.md, worst first."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = sorted(rows, key=lambda r: r.true_change)
    with (folder / "mutants.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(r) for r in ordered)
    (folder / "mutants.md").write_text(page(ordered, device), encoding="utf-8")


def page(rows: Sequence[Row], device: str) -> str:
    """What was found, for people."""
    large = [r for r in rows if r.true_change <= -CAUGHT_FROM]
    small = [r for r in rows if r.true_change > -CAUGHT_FROM]
    caught, also = (sum(r.verdict == "regressed" for r in group) for group in (large, small))
    lines = [
        "# Mutants: slowdowns that the gate has to catch",
        "",
        f"{device}. The gate caught {caught} of {len(large)} cases that are slower by 2% or more, and {also} of",
        f"{len(small)} that lose less. The margin is 1%. A true change is the mean of {PAIRS} pairs of fresh",
        "processes that the gate didn't see, with its 95% interval.",
        "",
        "| mutant | case | true change | 95% interval | the gate saw | verdict | pairs | seconds | |",
        "|---|---|--:|--:|--:|---|--:|--:|---|",
        *map(_line, rows),
        "",
        "What each of them does:",
        "",
        *(f"- `{mutant.name}`: {mutant.text}" for mutant in mutants() if mutant.name in {r.mutant for r in rows}),
        "",
        "Seconds are of a whole gate run, which measures all cases of a group of mutants. Made by",
        "`scripts/gate_mutants.py` from `scripts/mutants/*.patch`.",
    ]
    return "\n".join(lines) + "\n"


def _line(r: Row) -> str:
    interval = f"{units.change(r.true_low)} to {units.change(r.true_high)}"
    seen = "" if r.change is None else units.change(r.change)
    cells = (f"`{r.mutant}`", f"`{r.case}`", units.change(r.true_change), interval, seen, r.verdict, r.pairs)
    return f"| {' | '.join(map(str, cells))} | {r.seconds:.0f} | {r.judged} |"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Gate known slowdowns of our kernels.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant; may be repeated")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="DIR")
    options = parser.parse_args()
    chosen, file = mutants(options.only), options.output / "mutants.csv"
    with tempfile.TemporaryDirectory() as folder:
        # Empty, so that offsets are assumed, as on a machine that was never calibrated.
        noise = Path(folder) / "noise.json"
        for group in groups(chosen):
            device, found = measured(group, noise)
            names = {mutant.name for mutant in group}
            save([*(r for r in known(file) if r.mutant not in names), *found], options.output, device)
            for r in found:
                print(_line(r), flush=True)


if __name__ == "__main__":
    main()
