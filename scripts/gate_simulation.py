"""How often the gate errs: the gate's own decisions on simulated process pairs.

    python scripts/gate_simulation.py reports/h200/gate

Writes simulation.md, .csv and .png there, and ends with 1 if a bar is missed. It takes two minutes on one core.
`gate_models.py` has the noise that is simulated.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gate_models import (
    ALONE,
    BARS,
    CALIBRATION_BLOCKS,
    CASES,
    CURVE,
    MARGIN,
    PANELS,
    RUNS,
    SEED,
    UNCHANGED_BLOCKS,
    Result,
    result,
    settings,
)

from harness.gate import deciding as gate
from harness.gate.records import NOISE_MOST
from harness.units import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLOCK_COLUMNS: dict[str, Callable[[Result], str]] = {
    "noise": lambda r: r.setting.model,
    "loss": lambda r: percent(r.setting.loss),
    "margin": lambda r: percent(r.margin, 2),
    "too noisy": lambda r: percent(r.too_noisy, 2),
    "OK": lambda r: percent(r.ok, 2),
    "improved": lambda r: percent(r.improved, 2),
    "REGRESSED": lambda r: percent(r.regressed, 2),
    "INCONCLUSIVE": lambda r: percent(r.inconclusive, 2),
    "pairs": lambda r: f"{r.pairs:.1f}",
}

RUN_COLUMNS: dict[str, Callable[[Result], str]] = {
    "noise": lambda r: r.setting.model,
    "cases": lambda r: (
        f"{r.setting.changed} of {CASES} lose {percent(r.setting.loss, 0)}" if r.setting.changed else "none changed"
    ),
    "exit 0": lambda r: percent(r.run_0),
    "exit 1": lambda r: percent(r.run_1),
    "exit 3": lambda r: percent(r.run_3),
    "false alarm": lambda r: percent(r.run_false, 2),
    "pairs": lambda r: f"{r.run_pairs:.1f}",
    "cases OK": lambda r: percent(r.ok + r.improved),
    "REGRESSED": lambda r: percent(r.regressed),
    "INCONCLUSIVE": lambda r: percent(r.inconclusive),
    "pairs a case": lambda r: f"{r.pairs:.1f}",
}


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown: the first column is aligned left, the other columns right."""
    names = list(header)
    lines = [names, ["---", *["--:"] * (len(names) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bars_table(results: list[Result]) -> str:
    """The table of the bars, with the shares that were found."""
    rows = []
    for bar in BARS:
        what = "passes" if bar.passed else "REGRESSED"
        asked = [
            "with" if bar.calibrated else "without",
            percent(bar.loss),
            f"{bar.result(results).setting.runs:,}",
            what,
        ]
        held = "holds" if bar.holds(results) else "MISSED"
        rows.append([bar.model, *asked, percent(bar.share(results), 3), str(bar), held])
    return table(["noise", "noise floor", "loss", "blocks", "verdict", "share", "bar", "found"], rows)


def results_table(
    columns: dict[str, Callable[[Result], str]], results: list[Result], kind: str, calibrated: bool
) -> str:
    """The table of all results of one kind."""
    chosen = (r for r in results if (r.setting.kind, r.setting.calibrated) == (kind, calibrated))
    return table(columns, ([column(r) for column in columns.values()] for r in chosen))


PAGE = """# How often does the gate err?

A simulation of the gate's own decisions (`harness/gate/deciding.py`). A block is everything that decides about one
case: a screen of {screen} pairs, and for suspects two looks at fresh pairs, after {looks}. A suspect is REGRESSED at
{alphas}, after Holm's method over the suspects; a case is OK at {passing}. The margin is {margin}. Seed {seed}.

| noise | what it does to the median of each process |
|---|---|
{models}

![Verdicts by loss](simulation.png)

## The bars

{bars}

None in {unchanged:,} means, at 95% confidence, fewer than {rare:.0f} in 100,000.

## One case

Without a noise floor. `pairs` is the mean number that a case took, the screen's included.

{blocks}

INCONCLUSIVE is exit 3, with the number of pairs that would tell. A loss of exactly the margin has no right answer: it
takes all pairs and mostly ends there. Under `outliers` the mean of some pairs is far off, so that 20 pairs often don't
decide; such a case ends INCONCLUSIVE, it doesn't pass.

With a noise floor, calibrated anew for each block from {calibration} blocks of {screen} pairs. `margin` is the median
of the margins: noise floors raise it where the noise needs it. `too noisy` is the share of cases whose noise floor is
more than {most:g} times the margin that was asked for: they can't pass, and end INCONCLUSIVE.

{floors}

## A run of a dozen cases

{runs:,} runs each. `slow together`: a slow process is slow in all its cases, as one process measures all of them. In
the other rows cases are independent. `false alarm`: a case that didn't change is REGRESSED. `pairs` of a run: the pairs
until its last case was settled. Without a floor:

{run_table}

With noise floors that were calibrated from the same noise:

{run_floors}

Made by `python scripts/gate_simulation.py`. The numbers of the figure are in `simulation.csv`.
"""


def render(results: list[Result]) -> str:
    """The report as Markdown."""
    docs = {name: " ".join((model.__doc__ or "").split()) for name, model in ALONE.items()}
    return PAGE.format(
        screen=gate.SCREEN_PAIRS,
        looks=" and ".join(str(gate.CONFIRM_PAIRS * (look + 1)) for look in range(gate.LOOKS)),
        alphas=" and ".join(percent(alpha) for alpha in gate.LOOK_ALPHAS),
        passing=percent(gate.PASS_LEVEL, 0),
        margin=percent(MARGIN, 0),
        seed=SEED,
        models="\n".join(f"| {name} | {text} |" for name, text in docs.items()),
        bars=bars_table(results),
        unchanged=UNCHANGED_BLOCKS,
        rare=3e5 / UNCHANGED_BLOCKS,
        calibration=CALIBRATION_BLOCKS,
        most=NOISE_MOST,
        blocks=results_table(BLOCK_COLUMNS, results, "block", calibrated=False),
        floors=results_table(BLOCK_COLUMNS, results, "block", calibrated=True),
        runs=RUNS,
        run_table=results_table(RUN_COLUMNS, results, "run", calibrated=False),
        run_floors=results_table(RUN_COLUMNS, results, "run", calibrated=True),
    )


def write_csv(results: list[Result], path: Path) -> None:
    """Write every result, one column a field."""
    rows = []
    for each in results:
        record = asdict(each)
        rows.append(record.pop("setting") | {name: round(value, 8) for name, value in record.items()})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


AREAS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("REGRESSED", {"facecolor": "#D55E00"}),
    ("INCONCLUSIVE", {"facecolor": "#F0E442", "hatch": "...."}),
    ("OK", {"facecolor": "#DDDDDD"}),
)


def draw(axes: Axes, results: list[Result]) -> None:
    """Draw the verdicts under one kind of noise, stacked over the loss. The lowest edge is the power."""
    setting = results[0].setting
    losses = [100 * r.setting.loss for r in results]
    stack = [[100 * share for share in (r.regressed, r.inconclusive, r.ok + r.improved)] for r in results]
    areas = axes.stackplot(losses, *zip(*stack, strict=True))
    for area, (name, look) in zip(areas, AREAS, strict=True):
        area.set(label=name, edgecolor="#777777", linewidth=0.3, **look)
    margin = 100 * statistics.median(r.margin for r in results)
    axes.axvline(margin, color="black", linestyle="--", linewidth=1, label="margin (with noise floors: their median)")
    axes.set_title(setting.model + (", with a noise floor" if setting.calibrated else ""), loc="left")
    axes.set(xlim=(losses[0], losses[-1]), ylim=(0, 100))


def plot(results: list[Result], path: Path) -> None:
    """Draw a panel for each noise: which verdicts a loss gets."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    curves = [r for r in results if r.setting.kind == "curve"]
    with mpl.rc_context({"font.size": 7, "axes.titlesize": 8, "hatch.linewidth": 0.4, "legend.frameon": False}):
        figure = Figure(figsize=(7, 4.4), dpi=200, layout="constrained")
        panels = figure.subplots(2, len(PANELS), sharex=True, sharey=True)
        for index, axes in enumerate(panels.flat):
            draw(axes, curves[index * len(CURVE) : (index + 1) * len(CURVE)])
            axes.label_outer()
        for axes in panels[-1]:
            axes.set_xlabel("true loss of speed, %")
        for axes in panels[:, 0]:
            axes.set_ylabel("share of cases, %")
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        figure.savefig(path, metadata={"Software": None})


def main() -> None:
    """Simulate, write, and print which bars were missed."""
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
    folder.mkdir(parents=True, exist_ok=True)
    results = [result(setting, stream) for stream, setting in enumerate(settings())]
    write_csv(results, folder / "simulation.csv")
    plot(results, folder / "simulation.png")
    (folder / "simulation.md").write_text(render(results), encoding="utf-8")
    print(bars_table(results))
    sys.exit(not all(bar.holds(results) for bar in BARS))


if __name__ == "__main__":
    main()
