"""Simulated noise for `gate_simulation.py`: the gate's own decisions on it, and the bars that they must meet.

Everything is seeded: the same version of numpy gives the same numbers. `gate_noise.py` has the kinds of noise.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from gate_noise import ALONE, LATELY, offset_of, pairs
from gate_past import noise_as_before, rule_before

from harness.gate import deciding as gate
from harness.gate import looks, noise_store
from harness.gate.offsets import Block
from harness.gate.records import Decision, Margin, change
from harness.units import percent

SEED = 20261121
MARGIN, LOSS = 0.01, 0.03
LOSSES = (0.0, MARGIN, 0.02, LOSS, 0.05)
BLOCKS, UNCHANGED_BLOCKS, CURVE_BLOCKS = 5_000, 30_000, 400
CASES, MANY = 12, 200
RUNS = {CASES: 1_000, MANY: 400}
CALIBRATION_BLOCKS = 10
OFFSETS = (0.0, 0.004, 0.006)
CURVE = sorted({step / 400 for step in range(21)} | {step / 2000 for step in range(15, 26)})
PANELS = ("steady", "slow", "outliers")
CHUNK = 500


@dataclass(frozen=True, slots=True)
class Setting:
    """What to simulate: `runs` gate runs of `cases` cases, of which the first `changed` lose `loss`.

    offset: standard deviation of what all pairs of a case's run share. calibrated: blocks of the same noise calibrate
    the machine before each run. before: decided by the rule of harness 0.2.
    """

    kind: str
    model: str
    loss: float
    runs: int
    cases: int = 1
    changed: int = 1
    calibrated: bool = False
    offset: float = 0.0
    before: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a setting: shares of all cases by outcome, and of all runs by exit code (0, 1, 3).

    run_false: share of runs where an unchanged case is REGRESSED. found: share of the changed cases that are REGRESSED.
    margin: the loss that passes; failing: the loss from which on a case fails; both are medians. too_noisy: share of
    cases whose noise is too large to pass. pairs: mean number of pairs of a case, with the screen's pairs; run_pairs:
    mean number until the last case of a run was decided.
    """

    setting: Setting
    ok: float
    improved: float
    regressed: float
    inconclusive: float
    found: float
    margin: float
    failing: float
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
    yield from _of_identical_code()
    yield from _of_losses()
    for calibrated, model, loss in itertools.product((False, True), PANELS, CURVE):
        yield Setting("curve", model, loss, CURVE_BLOCKS, calibrated=calibrated)


def _of_identical_code() -> Iterator[Setting]:
    """Runs of identical code: 200 cases for the noise that counts there, 12 cases for all."""
    for cases, (model, offset) in itertools.product((CASES, MANY), _noises()):
        if cases == CASES or (model, offset) in _MANY_NOISES:
            for before, calibrated in ((True, False), (False, False), (False, True)):
                yield Setting("same", model, 0.0, RUNS[cases], cases, 0, calibrated, offset, before)


_MANY_NOISES = (
    *(("steady", offset) for offset in OFFSETS),
    ("outliers", 0.0),
    ("outliers", 0.004),
    ("ordered", 0.0),
    ("sticky", 0.0),
)


def _noises() -> Iterator[tuple[str, float]]:
    yield from (("steady", offset) for offset in OFFSETS)
    yield from ((model, 0.0) for model in (*ALONE, *LATELY) if model != "steady")
    yield from ((model, 0.004) for model in ("heavy", "outliers", "bimodal"))


def _of_losses() -> Iterator[Setting]:
    """Runs in which one case loses speed: how often the gate finds that."""
    for cases, loss in itertools.product((CASES, MANY), LOSSES[1:]):
        runs = RUNS[cases] if cases == CASES else RUNS[cases] // 4
        for model, offset, calibrated in (
            ("steady", 0.0, False),
            ("steady", 0.0, True),
            ("steady", 0.004, False),
            ("steady", 0.004, True),
            ("outliers", 0.0, True),
        ):
            for before in (True, False) if not calibrated or model == "outliers" else (False,):
                yield Setting("loss", model, loss, runs, cases, 1, calibrated, offset, before)


def simulated(setting: Setting, stream: int) -> Iterator[tuple[dict[str, Margin], dict[str, Decision]]]:
    """Margins and decisions of each run. stream: number of the setting's own sequence of random numbers."""
    rng = np.random.default_rng([SEED, stream])
    keys = [str(number) for number in range(setting.cases)]
    lost = np.where(np.arange(setting.cases) < setting.changed, change(-setting.loss), 0.0)[:, None]
    confirming = looks.pairs_at(looks.LOOKS)
    chunk = max(1, CHUNK // setting.cases)
    for start in range(0, setting.runs, chunk):
        size = (min(chunk, setting.runs - start), setting.cases)
        measured = pairs(setting.model, rng, (*size, gate.SCREEN_PAIRS + confirming)) + lost
        measured += offset_of(setting.offset, rng, size)
        screens, confirms = measured[..., : gate.SCREEN_PAIRS].tolist(), measured[..., gate.SCREEN_PAIRS :].tolist()
        blocks = (*size, CALIBRATION_BLOCKS if setting.calibrated else 0)
        calibrated = pairs(setting.model, rng, (*blocks, gate.SCREEN_PAIRS)) + offset_of(setting.offset, rng, blocks)
        for screen, confirm, of_cases in zip(screens, confirms, calibrated, strict=True):
            margins = dict(zip(keys, _margins(setting, of_cases), strict=True))
            screened, confirmed = (dict(zip(keys, values, strict=True)) for values in (screen, confirm))
            yield margins, gate.decided(screened, confirmed, margins)


def _margins(setting: Setting, calibrated: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[Margin]:
    """The margin of each case. calibrated: changes by case, block and pair."""
    means = calibrated.mean(axis=2)
    if setting.before:
        return [Margin(MARGIN, noise_as_before(of_case)) for of_case in means.tolist()]
    errors = calibrated.std(axis=2, ddof=1) / gate.SCREEN_PAIRS**0.5
    pooled = zip(means.tolist(), errors.tolist(), strict=True)
    blocks = {(str(case), ""): list(map(Block, *both)) for case, both in enumerate(pooled)}
    noise = noise_store.Noise(None, "", blocks)  # type: ignore[arg-type] # nothing is written
    return [noise.margin(str(case), "", MARGIN, setting.cases) for case in range(setting.cases)]


def spent(decision: Decision) -> int:
    """How many pairs a case took, with the screen's pairs."""
    return decision.pairs + (gate.SCREEN_PAIRS if decision.stage == "confirm" else 0)


def result(setting: Setting, stream: int) -> Result:
    """Simulate one setting."""
    with rule_before() if setting.before else nullcontext():
        return _result(setting, stream)


def _result(setting: Setting, stream: int) -> Result:
    cases, runs = Counter[str](), Counter[str]()
    case_pairs = run_pairs = found = 0
    every: list[Margin] = []
    for margins, decisions in simulated(setting, stream):
        outcomes = [decision.outcome for decision in decisions.values()]
        took = [spent(decision) for decision in decisions.values()]
        cases.update(outcomes)
        found += outcomes[: setting.changed].count("regressed")
        runs["1" if "regressed" in outcomes else "3" if "inconclusive" in outcomes else "0"] += 1
        runs["false"] += "regressed" in outcomes[setting.changed :]
        case_pairs += sum(took)
        run_pairs += max(took)
        every += margins.values()
    total = setting.runs * setting.cases
    means = {
        "found": found / (setting.runs * max(1, setting.changed)),
        "margin": statistics.median(one.value for one in every),
        "failing": statistics.median(one.failing for one in every),
        "too_noisy": sum(one.too_noisy for one in every) / total,
        "pairs": case_pairs / total,
        "run_pairs": run_pairs / setting.runs,
    }
    of_cases = {name: cases[name] / total for name in ("ok", "improved", "regressed", "inconclusive")}
    of_runs = {f"run_{name}": runs[name] / setting.runs for name in ("0", "1", "3", "false")}
    return Result(setting, **of_cases, **of_runs, **means)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar for one noise and loss: a share has to be at least, or at most, so much.

    figure: which share of the result it is. The other fields choose the setting, as `Setting` has them.
    """

    model: str
    loss: float
    figure: str = "regressed"
    least: float = 0.0
    most: float = 1.0
    calibrated: bool = False
    kind: str = "block"
    cases: int = 1
    offset: float = 0.0

    def about(self, setting: Setting) -> bool:
        """Whether the bar is about the result of this setting."""
        wanted = (self.kind, self.calibrated, self.model, self.loss, self.cases, self.offset, False)
        given = (setting.kind, setting.calibrated, setting.model, setting.loss, setting.cases, setting.offset)
        return (*given, setting.before) == wanted

    def result(self, results: list[Result]) -> Result:
        """The result that the bar is about."""
        return next(r for r in results if self.about(r.setting))

    def share(self, results: list[Result]) -> float:
        """The share that the bar limits."""
        found = self.result(results)
        return found.ok + found.improved if self.figure == "passes" else float(getattr(found, self.figure))

    def holds(self, results: list[Result]) -> bool:
        return self.least <= self.share(results) <= self.most

    def __str__(self) -> str:
        return f"at least {percent(self.least)}" if self.least else f"at most {percent(self.most)}"


FOUND = {"steady": 0.99, "slow": 0.85, "heavy": 0.99, "outliers": 0.95, "bimodal": 0.99, "drifting": 0.99}
_SAME = [("steady", offset) for offset in (0.0, 0.004)] + [("outliers", 0.004), ("outliers", 0.0), ("ordered", 0.0)]
BARS = [
    *(Bar(model, 0.0, most=0.0) for model in ALONE),
    *(Bar(model, MARGIN, most=0.015) for model in ALONE),
    *(Bar(model, LOSS, least=least) for model, least in FOUND.items()),
    *(Bar(model, LOSS, "passes", most=0.01, calibrated=True) for model in ALONE),
    *(
        Bar(model, 0.0, "run_1", most=0.01, kind="same", cases=cases, calibrated=calibrated, offset=offset)
        for cases in (CASES, MANY)
        for model, offset in _SAME
        for calibrated in (False, True)
    ),
    *(Bar("outliers", 0.0, "run_3", most=0.1, kind="same", cases=CASES, calibrated=known) for known in (False, True)),
    *(Bar("outliers", LOSS, "found", least=0.95, kind="loss", cases=n, calibrated=True) for n in (CASES, MANY)),
    *(Bar("steady", LOSS, "found", least=0.95, kind="loss", cases=n, offset=0.004) for n in (CASES, MANY)),
]
