"""What pairs of measurements say about each case: the screen, the two looks of the confirmation, stored runs.

Every decision is a test of one number against one limit: the mean over fresh process pairs of ln(time of the base /
time now), against ln(1 - margin), with one-sided bounds by Student's t. `scripts/gate_simulation.py` says how often it
errs.

The two errors have two levels. An unchanged case that fails makes people switch the gate off. So the chance of
REGRESSED is at most 1% for a loss of exactly the margin, over all cases and looks together. A loss just above the
margin that passes costs little. So OK takes a level of 5% at each step: at 1% far more of the unchanged cases would end
undecided where some processes are slow.

The second look gets nearly all of the 1%. Ten pairs show the spread of rare slow processes badly, and a large loss is
found at a strict level too. To see what another choice does, change the constants, and the script's number of blocks.

A case whose noise is larger than its margin allows (`Margin.too_noisy`) is never OK. Its limit is the
noise: a loss beyond that is REGRESSED, all smaller losses are INCONCLUSIVE, however many pairs there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.gate.records import TELL_MOST, Decision, Margin, Outcome
from harness.stats import Mean, Tested, count_to_tell, holm

SCREEN_PAIRS = 3
CONFIRM_PAIRS = 10
"""Fresh pairs that each look of the confirmation adds."""
LEAST_PAIRS = 3
"""A case with fewer pairs gets no decision."""
ALPHA = 0.01
LOOK_ALPHAS = (0.001, 0.009)
"""ALPHA, split over the looks. By Bonferroni their errors add up to ALPHA at most, even if looks aren't independent."""
LOOKS = len(LOOK_ALPHAS)
PASS_LEVEL = 0.05
TELL_POWER = 0.9
"""The chance of a decision with the number of pairs that `Decision.pairs_to_tell` gives."""


def screened(changes: Mapping[str, Sequence[float]], margins: Mapping[str, Margin]) -> dict[str, Decision | None]:
    """The screen's decision of each case. None stands for a suspect: its loss isn't clearly below the margin.

    A case that is too noisy to pass, and whose loss is clearly below its noise, is decided: it is inconclusive.

    Suspects are measured again. changes: of each case's pairs. A case with fewer than LEAST_PAIRS is a suspect
    too.
    """
    means = _means(changes)
    return {key: _passed(means[key], margins[key]) if key in means else None for key in changes}


def looked(
    changes: Mapping[str, Sequence[float]], margins: Mapping[str, Margin], look: int, suspects: int
) -> dict[str, Decision]:
    """Decide about suspects from the pairs of this look (1 or 2) and of the looks before, without the screen's.

    An 'inconclusive' case goes on to the next look; after the last look it stays so. suspects: how many cases Holm's
    method counts: the cases that came into the confirmation, less the cases that an earlier look found regressed. (The
    share of the level that these had passes on to the rest: a closed test.) Cases with fewer than LEAST_PAIRS are left
    out of the answer.
    """
    return _confirmed(_means(changes), margins, LOOK_ALPHAS[look - 1], suspects)


def stored(changes: Mapping[str, Sequence[float]], margins: Mapping[str, Margin]) -> dict[str, Decision]:
    """Decide in one step from the pairs of two stored runs, at the whole of ALPHA.

    Holm's method counts all cases, since the same pairs can't first choose the suspects and then confirm them. A case
    with fewer than CONFIRM_PAIRS may be found OK, never regressed; one with fewer than LEAST_PAIRS is left out.
    """
    means = _means(changes)
    many = {key: mean for key, mean in means.items() if mean.count >= CONFIRM_PAIRS}
    confirmed = _confirmed(many, margins, ALPHA, len(means))
    few = {key: _passed(mean, margins[key]) or _undecided(mean, margins[key]) for key, mean in means.items()}
    return few | confirmed


def decided(
    screen: Mapping[str, Sequence[float]], confirm: Mapping[str, Sequence[float]], margins: Mapping[str, Margin]
) -> dict[str, Decision]:
    """The whole procedure on pairs that exist already: the decisions of a gate that measured these pairs.

    confirm: enough pairs for all looks, for each case; only the pairs of suspects are used. A case with too few pairs
    is left out.
    """
    decisions = {key: decision for key, decision in screened(screen, margins).items() if decision}
    going = [key for key in screen if key not in decisions]
    suspects = len(going)
    for look in range(1, LOOKS + 1):
        found = looked({key: confirm[key][: CONFIRM_PAIRS * look] for key in going}, margins, look, suspects)
        decisions |= found
        suspects -= sum(decision.outcome == "regressed" for decision in found.values())
        going = [key for key, decision in found.items() if decision.outcome == "inconclusive"]
        if not going:
            break
    return {key: decisions[key] for key in screen if key in decisions}


def _means(changes: Mapping[str, Sequence[float]]) -> dict[str, Mean]:
    return {key: Mean.of(values) for key, values in changes.items() if len(values) >= LEAST_PAIRS}


def _passed(mean: Mean, margin: Margin) -> Decision | None:
    """The decision of the screen's few pairs: OK, improved, or inconclusive where the case is too noisy; or None."""
    outcome = _passing(mean, margin)
    return Decision(outcome, "screen", mean.value, *_bounds(mean, PASS_LEVEL), mean.count) if outcome else None


def _undecided(mean: Mean, margin: Margin) -> Decision:
    more = _pairs_to_tell(mean, margin, ALPHA)
    return Decision("inconclusive", "screen", mean.value, *_bounds(mean, PASS_LEVEL), mean.count, pairs_to_tell=more)


def _confirmed(
    means: Mapping[str, Mean], margins: Mapping[str, Margin], alpha: float, family: int
) -> dict[str, Decision]:
    ps = [mean.p_below(margins[key].limit) for key, mean in means.items()]
    tests = holm(ps, alpha, max(family, len(ps)))
    return {
        key: _tested(mean, margins[key], p, test) for (key, mean), p, test in zip(means.items(), ps, tests, strict=True)
    }


def _tested(mean: Mean, margin: Margin, p: float, test: Tested) -> Decision:
    """The decision of one test. `high` has the level that Holm's method held p against."""
    outcome: Outcome = "regressed" if test.rejected else _passing(mean, margin) or "inconclusive"
    more = _pairs_to_tell(mean, margin, test.level) if outcome == "inconclusive" else None
    return Decision(outcome, "confirm", mean.value, *_bounds(mean, test.level), mean.count, p, more)


def _passing(mean: Mean, margin: Margin) -> Outcome | None:
    """OK or improved; None if the loss may be as large as the margin. A case that is too noisy is never OK."""
    low = mean.low(PASS_LEVEL)
    if low <= margin.limit:
        return None
    if low > -margin.limit:
        return "improved"
    return "inconclusive" if margin.too_noisy else "ok"


def _bounds(mean: Mean, level: float) -> tuple[float, float]:
    """(lower bound at the level for passing, upper bound at `level`). The first decides OK, the second REGRESSED."""
    return mean.low(PASS_LEVEL), mean.high(level)


def _pairs_to_tell(mean: Mean, margin: Margin, level: float) -> int | None:
    """Pairs of a confirmation that would decide, if the true mean is the one found so far; None if none would."""
    distance = mean.value - margin.limit
    if margin.too_noisy and distance > 0:
        return None
    needed = count_to_tell(mean.deviation, abs(distance), PASS_LEVEL if distance > 0 else level, TELL_POWER, TELL_MOST)
    return max(needed, CONFIRM_PAIRS)
