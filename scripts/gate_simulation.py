"""How often the gate errs, on made-up noise: runs the gate's own decisions on simulated process pairs.

    python scripts/gate_simulation.py reports/h200/gate

Writes simulation.md, .csv and .png there; ends with 1 where a bar is missed. Takes three minutes on one core. All of it
is seeded: the same numpy gives the same files.
"""

from __future__ import annotations

import csv
import itertools
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.gate import _decision as gate
from harness.units import percent
from harness.verdict import Decision, Margin, change

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

SEED = 20261121
MARGIN, LOSS = 0.01, 0.03
BLOCKS, UNCHANGED_BLOCKS, CURVE_BLOCKS = 20_000, 100_000, 2_000
RUNS, CASES = 1_000, 12
CALIBRATION_BLOCKS = 5
CURVE = sorted({step / 400 for step in range(21)} | {step / 2000 for step in range(15, 26)})
CONFIRM_PAIRS = gate.CONFIRM_PAIRS * gate.LOOKS
CHUNK = 1_000
KEYS = tuple(f"case {number}" for number in range(CASES))


def steady(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """How far a process's median is off, as a logarithm: normal, 0.05%, about what a quiet H200 shows."""
    return rng.normal(0, 0.0005, size)


def slow(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """20% of processes are 3% slow; all are steady besides."""
    return steady(rng, size) + change(-0.03) * (rng.random(size) < 0.2)


def heavy(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Student's t with 2 degrees of freedom, which has no variance, times 0.2%: 1 in 100 is off by 2% or more."""
    return 0.002 * rng.standard_t(2, size)


def together(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """As `slow`, and a slow process is slow in all cases of its run."""
    runs, _cases, *rest = size
    return steady(rng, size) + change(-0.03) * (rng.random((runs, 1, *rest)) < 0.2)


ALONE: dict[str, Noise] = {"steady": steady, "slow": slow, "heavy": heavy}
MODELS = ALONE | {"slow together": together}


@dataclass(frozen=True, slots=True)
class Setting:
    """What to simulate: `runs` gate runs of `cases` cases, of which the first `changed` lose `loss`.

    floor: margins are raised by a noise floor that noise of the same kind calibrated.
    """

    kind: str
    model: str
    loss: float
    runs: int
    cases: int = 1
    changed: int = 1
    floor: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a setting. Shares of all cases by outcome, and of all runs by exit code (0, 1, 3).

    run_false: runs with a REGRESSED among the cases that didn't change. margin: mean. pairs: mean number that a case
    took, screen included; run_pairs: that a run took until its last case was settled.
    """

    setting: Setting
    ok: float
    improved: float
    regressed: float
    inconclusive: float
    margin: float
    pairs: float
    run_0: float
    run_1: float
    run_3: float
    run_false: float
    run_pairs: float


def settings() -> Iterator[Setting]:
    """Everything that the report needs, in its order."""
    for floor, model in itertools.product((False, True), ALONE):
        yield Setting("block", model, 0.0, UNCHANGED_BLOCKS, floor=floor)
        yield Setting("block", model, MARGIN, BLOCKS, floor=floor)
        yield Setting("block", model, LOSS, BLOCKS, floor=floor)
    for floor, model in itertools.product((False, True), MODELS):
        losses = ((0.0, 0), (LOSS, 1), (LOSS, CASES), (MARGIN, CASES))
        for loss, changed in losses[:2] if floor else losses:
            yield Setting("run", model, loss, RUNS, CASES, changed, floor)
    for model, floor in (("steady", False), ("heavy", False), ("slow", False), ("slow", True)):
        for loss in CURVE:
            yield Setting("curve", model, loss, CURVE_BLOCKS, floor=floor)


def pairs(model: str, rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Changes that pairs of processes of equal code show."""
    return MODELS[model](rng, size) - MODELS[model](rng, size)


def simulated(setting: Setting, stream: int) -> Iterator[tuple[dict[str, Margin], dict[str, Decision]]]:
    """Margins and decisions of each run. `stream` numbers the setting's own random numbers."""
    rng = np.random.default_rng([SEED, stream])
    keys = KEYS[: setting.cases]
    lost = np.where(np.arange(setting.cases) < setting.changed, change(-setting.loss), 0.0)[:, None]
    for start in range(0, setting.runs, CHUNK):
        size = (min(CHUNK, setting.runs - start), setting.cases)
        screens = (pairs(setting.model, rng, (*size, gate.SCREEN_PAIRS)) + lost).tolist()
        confirms = (pairs(setting.model, rng, (*size, CONFIRM_PAIRS)) + lost).tolist()
        blocks = pairs(setting.model, rng, (*size, CALIBRATION_BLOCKS, gate.SCREEN_PAIRS))
        # The largest change of a block, as the loss that it would be.
        floors = (-np.expm1(-np.abs(blocks.mean(axis=3)).max(axis=2)) * setting.floor).tolist()
        for values in zip(screens, confirms, floors, strict=True):
            screen, confirm, floor = (dict(zip(keys, of_cases, strict=True)) for of_cases in values)
            margins = {key: Margin(MARGIN, value) for key, value in floor.items()}
            yield margins, gate.decided(screen, confirm, margins)


def spent(decision: Decision) -> int:
    """Pairs of a case, those of the screen included."""
    return decision.pairs + (gate.SCREEN_PAIRS if decision.stage == "confirm" else 0)


def result(setting: Setting, stream: int) -> Result:
    """Simulate one setting."""
    cases, runs = Counter[str](), Counter[str]()
    case_pairs = run_pairs = 0
    margin = 0.0
    for margins, decisions in simulated(setting, stream):
        outcomes = [decision.outcome for decision in decisions.values()]
        took = [spent(decision) for decision in decisions.values()]
        cases.update(outcomes)
        runs["1" if "regressed" in outcomes else "3" if "inconclusive" in outcomes else "0"] += 1
        runs["false"] += "regressed" in outcomes[setting.changed :]
        case_pairs += sum(took)
        run_pairs += max(took)
        margin += sum(one.value for one in margins.values())
    total = setting.runs * setting.cases
    means = {"margin": margin / total, "pairs": case_pairs / total, "run_pairs": run_pairs / setting.runs}
    of_cases = {name: cases[name] / total for name in ("ok", "improved", "regressed", "inconclusive")}
    of_runs = {f"run_{name}": runs[name] / setting.runs for name in ("0", "1", "3", "false")}
    return Result(setting, **of_cases, **of_runs, **means)


@dataclass(frozen=True, slots=True)
class Bar:
    """What must hold for blocks of one noise and loss: the share of REGRESSED is at least or at most this."""

    model: str
    loss: float
    least: float = 0.0
    most: float = 1.0

    def result(self, results: list[Result]) -> Result:
        """What it is about: without a floor, so that the margin is the one asked for."""
        wanted = ("block", False, self.model, self.loss)
        of = ((r.setting.kind, r.setting.floor, r.setting.model, r.setting.loss) for r in results)
        return next(r for r, found in zip(results, of, strict=True) if found == wanted)

    def holds(self, results: list[Result]) -> bool:
        return self.least <= self.result(results).regressed <= self.most

    def __str__(self) -> str:
        return f"at least {percent(self.least)}" if self.least else f"at most {percent(self.most)}"


BARS = [
    *(Bar(model, 0.0, most=0.0) for model in ALONE),
    *(Bar(model, MARGIN, most=0.015) for model in ALONE),
    *(Bar(model, LOSS, least=0.85 if model == "slow" else 0.99) for model in ALONE),
]

BLOCK_COLUMNS: dict[str, Callable[[Result], str]] = {
    "noise": lambda r: r.setting.model,
    "loss": lambda r: percent(r.setting.loss),
    "margin": lambda r: percent(r.margin, 2),
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
    """A table in Markdown: text to the left in the first column, all else to the right."""
    names = list(header)
    lines = [names, ["---", *["--:"] * (len(names) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bars_table(results: list[Result]) -> str:
    """The bars, with what was found."""
    rows = []
    for bar in BARS:
        found = bar.result(results)
        shares = percent(bar.loss), f"{found.setting.runs:,}", percent(found.regressed, 3)
        rows.append([bar.model, *shares, str(bar), "holds" if bar.holds(results) else "MISSED"])
    return table(["noise", "loss", "blocks", "REGRESSED", "bar", "found"], rows)


def results_table(columns: dict[str, Callable[[Result], str]], results: list[Result], kind: str, floor: bool) -> str:
    """All outcomes of one kind."""
    chosen = (r for r in results if (r.setting.kind, r.setting.floor) == (kind, floor))
    return table(columns, ([column(r) for column in columns.values()] for r in chosen))


PAGE = """# How often does the gate err?

A simulation of the gate's own decisions (`harness/gate/_decision.py`). A block is everything that decides about one
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
takes all pairs and mostly ends there.

With a floor, calibrated anew for each block from {calibration} blocks of {screen} pairs: the margin (its mean is shown)
gets wider where the noise needs it. Fewer cases stay undecided, and small losses are seen less often.

{floors}

## A run of a dozen cases

{runs:,} runs each. `slow together`: a slow process is slow in all its cases, as one process measures all of them; the
others' cases are independent. `false alarm`: a case that didn't change is REGRESSED. A run's `pairs` are those until
its last case was settled. Without a floor:

{run_table}

With floors calibrated from the same noise:

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
        blocks=results_table(BLOCK_COLUMNS, results, "block", floor=False),
        floors=results_table(BLOCK_COLUMNS, results, "block", floor=True),
        runs=RUNS,
        run_table=results_table(RUN_COLUMNS, results, "run", floor=False),
        run_floors=results_table(RUN_COLUMNS, results, "run", floor=True),
    )


def write_csv(results: list[Result], path: Path) -> None:
    """Every result, one column a field."""
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
    """The verdicts under one kind of noise, stacked over the loss: the lowest edge is the power."""
    setting = results[0].setting
    losses = [100 * r.setting.loss for r in results]
    stack = [[100 * share for share in (r.regressed, r.inconclusive, r.ok + r.improved)] for r in results]
    areas = axes.stackplot(losses, *zip(*stack, strict=True))
    for area, (name, look) in zip(areas, AREAS, strict=True):
        area.set(label=name, edgecolor="#777777", linewidth=0.3, **look)
    margin = 100 * statistics.fmean(r.margin for r in results)
    axes.axvline(margin, color="black", linestyle="--", linewidth=1, label="margin (with floors: their mean)")
    axes.set_title(setting.model + (", with a noise floor" if setting.floor else ""), loc="left")
    axes.set(xlim=(losses[0], losses[-1]), ylim=(0, 100))


def plot(results: list[Result], path: Path) -> None:
    """Small multiples: what becomes of a loss under each noise."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    curves = [r for r in results if r.setting.kind == "curve"]
    with mpl.rc_context({"font.size": 7, "axes.titlesize": 8, "hatch.linewidth": 0.4, "legend.frameon": False}):
        figure = Figure(figsize=(7, 4.4), dpi=200, layout="constrained")
        panels = figure.subplots(2, 2, sharex=True, sharey=True)
        for index, axes in enumerate(panels.flat):
            draw(axes, curves[index * len(CURVE) : (index + 1) * len(CURVE)])
            axes.label_outer()
        for axes in panels[-1]:
            axes.set_xlabel("true loss of bandwidth, %")
        for axes in panels[:, 0]:
            axes.set_ylabel("share of cases, %")
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        figure.savefig(path, metadata={"Software": None})


def main() -> None:
    """Simulate, write, and say which bars were missed."""
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
