"""Simulated noise for `gate_simulation.py`: the gate's own decisions on it, and the bars that they must meet.

Everything is seeded: the same version of numpy gives the same numbers.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.gate import deciding as gate
from harness.gate import noise_store, pairing
from harness.gate.records import Decision, Margin, change
from harness.units import percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

SEED = 20261121
MARGIN, LOSS = 0.01, 0.03
LOSSES = (0.0, MARGIN, 0.02, LOSS, 0.05)
BLOCKS, UNCHANGED_BLOCKS, CURVE_BLOCKS = 20_000, 100_000, 2_000
RUNS, CASES = 1_000, 12
CALIBRATION_BLOCKS = 10
CURVE = sorted({step / 400 for step in range(21)} | {step / 2000 for step in range(15, 26)})
PANELS = ("steady", "slow", "outliers")
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


def outliers(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """3% of processes take 10% to 100% longer; all are steady besides."""
    longer: NDArray[np.float64] = np.log1p(rng.uniform(0.1, 1.0, size)) * (rng.random(size) < 0.03)
    return steady(rng, size) - longer


def bimodal(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Half of the processes are 1.5% slow; all are steady besides."""
    return steady(rng, size) + change(-0.015) * (rng.random(size) < 0.5)


def drifting(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Each process is 0.2% slower than the one before it; all are steady besides."""
    return steady(rng, size)  # `pairs` adds the drift, since it knows the order


def together(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Processes as in `slow`, where a slow process is slow in all cases of its run."""
    runs, _cases, *rest = size
    return steady(rng, size) + change(-0.03) * (rng.random((runs, 1, *rest)) < 0.2)


DRIFT = {"drifting": change(-0.002)}
ALONE: dict[str, Noise] = {
    "steady": steady,
    "slow": slow,
    "heavy": heavy,
    "outliers": outliers,
    "bimodal": bimodal,
    "drifting": drifting,
}
MODELS = ALONE | {"slow together": together}


@dataclass(frozen=True, slots=True)
class Setting:
    """What to simulate: `runs` gate runs of `cases` cases, of which the first `changed` lose `loss`.

    calibrated: noise of the same kind calibrates noise, which may raise the margins.
    """

    kind: str
    model: str
    loss: float
    runs: int
    cases: int = 1
    changed: int = 1
    calibrated: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a setting: shares of all cases by outcome, and of all runs by exit code (0, 1, 3).

    run_false: share of runs where an unchanged case is REGRESSED. margin: its median. too_noisy: share of cases whose
    noise is too large to pass. pairs: mean number of pairs of a case, with the screen's pairs; run_pairs:
    mean number until the last case of a run was decided.
    """

    setting: Setting
    ok: float
    improved: float
    regressed: float
    inconclusive: float
    margin: float
    too_noisy: float
    pairs: float
    run_0: float
    run_1: float
    run_3: float
    run_false: float
    run_pairs: float


def settings() -> Iterator[Setting]:
    """The settings that the report needs, in its order."""
    for calibrated, model, loss in itertools.product((False, True), ALONE, LOSSES):
        yield Setting("block", model, loss, BLOCKS if loss or calibrated else UNCHANGED_BLOCKS, calibrated=calibrated)
    for calibrated, model in itertools.product((False, True), MODELS):
        losses = ((0.0, 0), (LOSS, 1), (LOSS, CASES), (MARGIN, CASES))
        for loss, changed in losses[:2] if calibrated else losses:
            yield Setting("run", model, loss, RUNS, CASES, changed, calibrated)
    for calibrated, model, loss in itertools.product((False, True), PANELS, CURVE):
        yield Setting("curve", model, loss, CURVE_BLOCKS, calibrated=calibrated)


def pairs(model: str, rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Changes that pairs of processes of identical code show. The pairs of a gate run lie along the last axis."""
    noise = MODELS[model](rng, size) - MODELS[model](rng, size)
    return noise + DRIFT[model] * _later(rng, size) if model in DRIFT else noise


def _later(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """1 where the code now is measured after the base, -1 where it is measured before, by the gate's own order."""
    *shape, count = size
    draw = random.Random(int(rng.integers(2**32)))
    signs = [
        [1.0 if first == "base" else -1.0 for first in itertools.islice(pairing.order(draw), count)]
        for _ in range(int(np.prod(shape)))
    ]
    return np.array(signs).reshape(size)


def simulated(setting: Setting, stream: int) -> Iterator[tuple[dict[str, Margin], dict[str, Decision]]]:
    """Margins and decisions of each run. stream: number of the setting's own sequence of random numbers."""
    rng = np.random.default_rng([SEED, stream])
    keys = KEYS[: setting.cases]
    lost = np.where(np.arange(setting.cases) < setting.changed, change(-setting.loss), 0.0)[:, None]
    for start in range(0, setting.runs, CHUNK):
        size = (min(CHUNK, setting.runs - start), setting.cases)
        measured = pairs(setting.model, rng, (*size, gate.SCREEN_PAIRS + CONFIRM_PAIRS)) + lost
        screens, confirms = measured[..., : gate.SCREEN_PAIRS].tolist(), measured[..., gate.SCREEN_PAIRS :].tolist()
        blocks = CALIBRATION_BLOCKS if setting.calibrated else 0
        means = pairs(setting.model, rng, (*size, blocks, gate.SCREEN_PAIRS)).mean(axis=3).tolist()
        for values in zip(screens, confirms, means, strict=True):
            screen, confirm, calibrated = (dict(zip(keys, of_cases, strict=True)) for of_cases in values)
            margins = {key: Margin(MARGIN, noise_store.noise_of(of_case)) for key, of_case in calibrated.items()}
            yield margins, gate.decided(screen, confirm, margins)


def spent(decision: Decision) -> int:
    """How many pairs a case took, with the screen's pairs."""
    return decision.pairs + (gate.SCREEN_PAIRS if decision.stage == "confirm" else 0)


def result(setting: Setting, stream: int) -> Result:
    """Simulate one setting."""
    cases, runs = Counter[str](), Counter[str]()
    case_pairs = run_pairs = 0
    every: list[Margin] = []
    for margins, decisions in simulated(setting, stream):
        outcomes = [decision.outcome for decision in decisions.values()]
        took = [spent(decision) for decision in decisions.values()]
        cases.update(outcomes)
        runs["1" if "regressed" in outcomes else "3" if "inconclusive" in outcomes else "0"] += 1
        runs["false"] += "regressed" in outcomes[setting.changed :]
        case_pairs += sum(took)
        run_pairs += max(took)
        every += margins.values()
    total = setting.runs * setting.cases
    margin = statistics.median(one.value for one in every)
    means = {
        "margin": margin,
        "too_noisy": sum(one.too_noisy for one in every) / total,
        "pairs": case_pairs / total,
        "run_pairs": run_pairs / setting.runs,
    }
    of_cases = {name: cases[name] / total for name in ("ok", "improved", "regressed", "inconclusive")}
    of_runs = {f"run_{name}": runs[name] / setting.runs for name in ("0", "1", "3", "false")}
    return Result(setting, **of_cases, **of_runs, **means)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar for blocks of one noise and loss: a share of the cases has to be at least, or at most, so much.

    passed: the share counts cases that pass, OK or improved; otherwise it counts REGRESSED cases. calibrated:
    noise of the same kind has calibrated noise.
    """

    model: str
    loss: float
    least: float = 0.0
    most: float = 1.0
    passed: bool = False
    calibrated: bool = False

    def about(self, setting: Setting) -> bool:
        """Whether the bar is about the result of this setting."""
        wanted = ("block", self.calibrated, self.model, self.loss)
        return (setting.kind, setting.calibrated, setting.model, setting.loss) == wanted

    def result(self, results: list[Result]) -> Result:
        """The result that the bar is about."""
        return next(r for r in results if self.about(r.setting))

    def share(self, results: list[Result]) -> float:
        """The share of cases that the bar limits."""
        found = self.result(results)
        return found.ok + found.improved if self.passed else found.regressed

    def holds(self, results: list[Result]) -> bool:
        return self.least <= self.share(results) <= self.most

    def __str__(self) -> str:
        return f"at least {percent(self.least)}" if self.least else f"at most {percent(self.most)}"


FOUND = {"steady": 0.99, "slow": 0.85, "heavy": 0.99, "outliers": 0.5, "bimodal": 0.99, "drifting": 0.99}
BARS = [
    *(Bar(model, 0.0, most=0.0) for model in ALONE),
    *(Bar(model, MARGIN, most=0.015) for model in ALONE),
    *(Bar(model, LOSS, least=least) for model, least in FOUND.items()),
    *(Bar(model, LOSS, most=0.01, passed=True, calibrated=True) for model in ALONE),
]
