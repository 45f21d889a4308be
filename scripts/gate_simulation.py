"""How often the gate errs: the gate's own decisions on simulated process pairs.

    python scripts/gate_simulation.py reports/h200/gate

Writes simulation.md, .csv and .png there, and ends with 1 if a bar is missed. It takes six minutes of processor
time, on two cores at once. `gate_noise.py` has the noise that is simulated, `gate_models.py` what is simulated of it.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gate_models import (
    BARS,
    CALIBRATION_BLOCKS,
    CURVE,
    MARGIN,
    PANELS,
    RUNS,
    SEED,
    UNCHANGED_BLOCKS,
    Result,
    Setting,
    result,
    settings,
)
from gate_noise import MODELS

from harness.gate import deciding as gate
from harness.gate import looks
from harness.gate.offsets import ASSUMED, OFFSET_ALPHA
from harness.gate.records import NOISE_MOST
from harness.units import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROCESSES = 2
Columns = dict[str, Callable[[Result], str]]
BLOCK_COLUMNS: Columns = {
    "noise": lambda r: r.setting.model,
    "loss": lambda r: percent(r.setting.loss),
    "fails from": lambda r: percent(r.failing, 2),
    "too noisy": lambda r: percent(r.too_noisy, 2),
    "OK": lambda r: percent(r.ok, 2),
    "improved": lambda r: percent(r.improved, 2),
    "REGRESSED": lambda r: percent(r.regressed, 2),
    "INCONCLUSIVE": lambda r: percent(r.inconclusive, 2),
    "pairs": lambda r: f"{r.pairs:.1f}",
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
        found = bar.result(results).setting
        asked = [
            percent(bar.offset, 2),
            "yes" if bar.calibrated else "no",
            percent(bar.loss),
            f"{found.runs:,} x {found.cases}",
            {"run_1": "exit 1", "run_3": "exit 3", "regressed": "REGRESSED", "found": "REGRESSED"}.get(
                bar.figure, bar.figure
            ),
        ]
        held = "holds" if bar.holds(results) else "MISSED"
        rows.append([bar.model, *asked, percent(bar.share(results), 3), str(bar), held])
    return table(["noise", "offset", "calibrated", "loss", "runs x cases", "what", "share", "bar", "found"], rows)


def blocks_table(results: list[Result], calibrated: bool) -> str:
    """The table of the results of single cases."""
    chosen = (r for r in results if (r.setting.kind, r.setting.calibrated) == ("block", calibrated))
    return table(BLOCK_COLUMNS, ([column(r) for column in BLOCK_COLUMNS.values()] for r in chosen))


def same_table(results: list[Result]) -> str:
    """Exit codes of runs of identical code: by the rule before, and by this one without and with calibration."""
    rows = []
    for noise in dict.fromkeys((r.setting.cases, r.setting.model, r.setting.offset) for r in results if _same(r)):
        of_noise = [r for r in results if _same(r) and noise == (r.setting.cases, r.setting.model, r.setting.offset)]
        cases, model, offset = noise
        codes = [" / ".join(percent(share) for share in (r.run_0, r.run_1, r.run_3)) for r in of_noise]
        rows.append([model, percent(offset, 2), str(cases), *codes, percent(of_noise[-1].failing, 2)])
    return table(["noise", "offset", "cases", "before", "now", "now, calibrated", "fails from"], rows)


def _same(found: Result) -> bool:
    return found.setting.kind == "same"


def losses_table(results: list[Result]) -> str:
    """How often a case that lost speed is found, beside cases that didn't."""
    rows = []
    chosen = [r for r in results if r.setting.kind == "loss"]

    def group(setting: Setting) -> tuple[object, ...]:
        return setting.cases, setting.model, setting.offset, setting.before, setting.calibrated

    for key in dict.fromkeys(group(r.setting) for r in chosen):
        of_group = [r for r in chosen if group(r.setting) == key]
        setting = of_group[0].setting
        rule = "before" if setting.before else "now, calibrated" if setting.calibrated else "now"
        shares = [percent(r.found) for r in of_group]
        false = percent(max(r.run_false for r in of_group))
        rows.append([setting.model, percent(setting.offset, 2), str(setting.cases), rule, *shares, false])
    losses = [percent(loss, 0) for loss in dict.fromkeys(r.setting.loss for r in chosen)]
    return table(["noise", "offset", "cases", "rule", *(f"lost {loss}" for loss in losses), "false alarm"], rows)


PAGE = """# How often does the gate err?

A simulation of the gate's own decisions (`harness/gate/deciding.py`). A block is everything that decides about one
case: a screen of {screen} pairs, and for suspects two looks at fresh pairs, after {looks}. A suspect is REGRESSED at
{alphas}, after Holm's method over the suspects; a case is OK at {passing}. The margin is {margin}. Seed {seed}.

An **offset** is what all pairs of a run share in a case: normal, drawn anew for each case and run, with the standard
deviation that the tables name. It can't be averaged out by more pairs. So a case fails only from a loss on that no
case of the run reaches by its offset, but for a chance of {offset_alpha}, and from 1% on. Without calibration the
standard deviation is taken as {assumed}; with calibration it comes from {calibration} blocks of {screen} pairs of each
case, calibrated anew for each run. *Before* is the rule of harness 0.2: it took the mean of all pairs, and no offset.

| noise | what it does to the median of each process |
|---|---|
{models}

![Verdicts by loss](simulation.png)

## The bars

{bars}

None in {unchanged:,} means, at 95% confidence, fewer than {rare:.0f} in 100,000.

## Runs of identical code

Exit 0 / 1 / 3, in {runs} runs. `fails from`: the median with calibration. Exit 3 says that the pairs don't decide;
`--resume` adds more.

{same}

## One case lost speed

How often the case is REGRESSED. `false alarm`: the largest share of runs in which another case is.

{losses}

A loss of exactly the margin has no right answer.

## One case, without offsets

`pairs` is the mean number that a case took, the screen's included. Without calibration:

{blocks}

With calibration. `too noisy`: the noise is more than {most:g} times the margin. Such a case can't pass.

{known}

Made by `python scripts/gate_simulation.py`. The numbers of the figure are in `simulation.csv`.
"""


def render(results: list[Result]) -> str:
    """The report as Markdown."""
    docs = {name: " ".join((model.__doc__ or "").split()) for name, model in MODELS.items()}
    return PAGE.format(
        screen=gate.SCREEN_PAIRS,
        looks=" and ".join(str(looks.pairs_at(look)) for look in range(1, looks.LOOKS + 1)),
        alphas=" and ".join(percent(alpha) for alpha in looks.LOOK_ALPHAS),
        passing=percent(looks.PASS_LEVEL, 0),
        margin=percent(MARGIN, 0),
        seed=SEED,
        offset_alpha=percent(OFFSET_ALPHA),
        assumed=percent(ASSUMED.scale, 2),
        models="\n".join(f"| {name} | {text} |" for name, text in docs.items()),
        bars=bars_table(results),
        unchanged=UNCHANGED_BLOCKS,
        rare=3e5 / UNCHANGED_BLOCKS,
        calibration=CALIBRATION_BLOCKS,
        most=NOISE_MOST,
        runs=" or ".join(f"{runs:,}" for runs in RUNS.values()),
        same=same_table(results),
        losses=losses_table(results),
        blocks=blocks_table(results, calibrated=False),
        known=blocks_table(results, calibrated=True),
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
    margin = 100 * statistics.median(r.failing for r in results)
    axes.axvline(margin, color="black", linestyle="--", linewidth=1, label="a loss fails from here on (median)")
    axes.set_title(setting.model + (", calibrated" if setting.calibrated else ""), loc="left")
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
    planned = list(settings())
    with ProcessPoolExecutor(PROCESSES) as pool:
        results = list(pool.map(result, planned, range(len(planned))))
    write_csv(results, folder / "simulation.csv")
    plot(results, folder / "simulation.png")
    (folder / "simulation.md").write_text(render(results), encoding="utf-8")
    print(bars_table(results))
    sys.exit(not all(bar.holds(results) for bar in BARS))


if __name__ == "__main__":
    main()
