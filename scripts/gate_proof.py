"""Show that the gate doesn't fail unchanged code: decisions of real measurements of one revision against itself.

    python scripts/gate_proof.py --blocks 9      # of the scenario ci: 126 decisions, 108 of them of our kernels
    python scripts/gate_proof.py --blocks 40 --only 'prelu/*' --output reports/mine

Needs a GPU and a git checkout. Each block is a whole gate run of HEAD in two worktrees, as in `harness gate calibrate`:
the screen, and the confirmation of the cases that the screen leaves open. No noise is known, as on a machine that was
never calibrated, so offsets of 0.40% are assumed. Blocks of earlier calls with the same output are kept, so a long
proof may be made in pieces.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from harness import gate, scenario, units
from harness.cli.console import open_console
from harness.cli.gate_progress import Teller
from harness.gate.records import GateRun, share

OUTPUT = Path("reports/h200/gate")


@dataclass(frozen=True, slots=True)
class Row:
    """A decision. change, low, high: as shares of the base's speed. seconds: time of the whole block."""

    block: int
    seed: int
    case: str
    change: float
    low: float
    high: float
    stage: str
    pairs: int
    outcome: str
    exit: int
    seconds: float


def rows(block: int, made: GateRun) -> Iterator[Row]:
    """The rows of a block, one a decision."""
    for evidence in made.cases:
        if decision := evidence.decision:
            yield Row(
                block=block,
                seed=made.seed or 0,
                case=evidence.case.id,
                change=share(decision.estimate),
                low=share(decision.low),
                high=share(decision.high),
                stage=decision.stage,
                pairs=len(evidence.pairs),
                outcome=decision.outcome,
                exit=made.exit,
                seconds=made.seconds,
            )


def known(file: Path) -> list[Row]:
    """The rows of earlier calls."""
    if not file.exists():
        return []
    types = {"block": int, "seed": int, "pairs": int, "exit": int, "case": str, "stage": str, "outcome": str}
    with file.open(newline="", encoding="utf-8") as lines:
        return [Row(**{name: types.get(name, float)(text) for name, text in r.items()}) for r in csv.DictReader(lines)]


def save(found: Sequence[Row], folder: Path, device: str) -> None:
    """Write base_against_base.csv and .md."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "base_against_base.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(r) for r in found)
    (folder / "base_against_base.md").write_text(page(found, device), encoding="utf-8")


def page(found: Sequence[Row], device: str) -> str:
    """The page, base_against_base.md."""
    outcomes = Counter(r.outcome for r in found)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    blocks = [*{r.block: r for r in found}.values()]
    seconds = [r.seconds for r in blocks]
    exits = ", ".join(f"{code} in {count} runs" for code, count in sorted(Counter(r.exit for r in blocks).items()))
    lines = [
        "# Base against base: does the gate fail unchanged code?",
        "",
        f"{device}. {len(found)} decisions on identical code in {len(seconds)} gate runs: {counts}.",
        f"{outcomes['regressed']} failed. Exit codes: {exits}. The margin is 1%. A run took {_span(seconds)}.",
        "",
        "| case | decisions | median difference | largest | confirmed | outcomes |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for case in dict.fromkeys(r.case for r in found):
        own = [r for r in found if r.case == case]
        typical = units.percent(statistics.median(abs(r.change) for r in own), 2)
        largest = units.change(max((r.change for r in own), key=abs))
        confirmed = sum(r.stage == "confirm" for r in own)
        ended = ", ".join(f"{count} {outcome}" for outcome, count in Counter(r.outcome for r in own).most_common())
        lines.append(f"| `{case}` | {len(own)} | {typical} | {largest} | {confirmed} | {ended} |")
    lines += ["", "The gate decided on these differences. Made by `scripts/gate_proof.py`."]
    return "\n".join(lines) + "\n"


def _span(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.0f} to {max(seconds):.0f} s, {statistics.median(seconds):.0f} s in the median"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Gate a revision against itself.")
    parser.add_argument("--blocks", type=int, default=9, metavar="N")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="of ci, just these cases")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="DIR")
    options = parser.parse_args()
    found = known(options.output / "base_against_base.csv")
    first = 1 + max((r.block for r in found), default=0)
    files, selection = tuple(scenario.find(["ci"])), scenario.Selection("cuda", only=tuple(options.only))
    with tempfile.TemporaryDirectory() as folder, Teller(open_console(err=True)) as teller:
        # Empty, so that offsets are assumed, as on a machine that was never calibrated.
        noise = Path(folder) / "noise.json"
        request = gate.Request("HEAD", files, selection, seed=first, noise=noise)
        for block, made in enumerate(gate.calibrate(request, options.blocks, teller), first):
            found += rows(block, made)
            save(found, options.output, made.machine.name)


if __name__ == "__main__":
    main()
