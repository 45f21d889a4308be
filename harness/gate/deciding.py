"""What pairs of measurements say about each case: the screen, the looks of the confirmation, stored runs.

Every decision is a test of one number against a limit: the centre of ln(time of the base / time now) over fresh process
pairs, against ln(1 - loss), with one-sided bounds. `centre` says how the centre is found, `looks` when the gate looks
and at which level, `offsets` which loss a run may show though nothing changed. `scripts/gate_simulation.py` says how
often the gate errs.

The two errors have two levels. An unchanged case that fails makes people switch the gate off. So the chance of
REGRESSED is at most ALPHA for identical code, over all cases and looks together: one part for what all pairs of a run
share, one for the pairs. A loss just above the margin that passes costs little. So OK takes a level of 5%: at 1% far
more of the unchanged cases would end undecided where some processes are slow.

To see what another choice does, change the constants, and the script's number of blocks.

A case whose noise is larger than its margin allows (`Margin.too_noisy`) is never OK. A loss that it can't have by its
noise is REGRESSED, all smaller losses are INCONCLUSIVE, however many pairs there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.gate import looks
from harness.gate.centre import Centre
from harness.gate.offsets import OFFSET_ALPHA
from harness.gate.records import TELL_MOST, Decision, Margin, Outcome
from harness.stats import Tested, holm

SCREEN_PAIRS = 3
LEAST_PAIRS = 3
"""A case with fewer pairs gets no decision."""
ALPHA = OFFSET_ALPHA + looks.PAIRS_ALPHA
TELL_POWER = 0.9
"""The chance of a decision with the number of pairs that `Decision.pairs_to_tell` gives."""


def screened(changes: Mapping[str, Sequence[float]], margins: Mapping[str, Margin]) -> dict[str, Decision | None]:
    """The screen's decision of each case. None stands for a suspect: its loss isn't clearly below the margin.

    A case that is too noisy to pass, and whose loss is clearly below its noise, is decided: it is inconclusive.

    Suspects are measured again. changes: of each case's pairs. A case with fewer than LEAST_PAIRS is a suspect
    too.
    """
    centres = _centres(changes)
    return {key: _passed(centres[key], margins[key]) if key in centres else None for key in changes}


def looked(
    changes: Mapping[str, Sequence[float]], margins: Mapping[str, Margin], look: int, suspects: int
) -> dict[str, Decision]:
    """Decide about suspects from the pairs of this look (from 1) and of the looks before, without the screen's.

    An 'inconclusive' case goes on to the next look; after the last look it stays so. suspects: how many cases Holm's
    method counts: the cases that came into the confirmation, less the cases that an earlier look found regressed. (The
    share of the level that these had passes on to the rest: a closed test.) Cases with fewer than LEAST_PAIRS are left
    out of the answer.
    """
    return _confirmed(_centres(changes), margins, (looks.look_alpha(look), looks.pass_level(look)), suspects)


def stored(changes: Mapping[str, Sequence[float]], margins: Mapping[str, Margin]) -> dict[str, Decision]:
    """Decide in one step from the pairs of two stored runs, at the level of all looks together.

    Holm's method counts all cases, since the same pairs can't first choose the suspects and then confirm them. A case
    with fewer than CONFIRM_PAIRS may be found OK, never regressed; one with fewer than LEAST_PAIRS is left out.
    """
    centres = _centres(changes)
    many = {key: centre for key, centre in centres.items() if centre.count >= looks.CONFIRM_PAIRS}
    confirmed = _confirmed(many, margins, (looks.PAIRS_ALPHA, looks.PASS_LEVEL), len(centres))
    few = {key: _passed(centre, margins[key]) or _undecided(centre, margins[key]) for key, centre in centres.items()}
    return few | confirmed


def decided(
    screen: Mapping[str, Sequence[float]],
    confirm: Mapping[str, Sequence[float]],
    margins: Mapping[str, Margin],
    most: int | None = None,
) -> dict[str, Decision]:
    """The whole procedure on pairs that exist already: the decisions of a gate that measured these pairs.

    confirm: enough pairs for all looks, for each case; only the pairs of suspects are used. most: looks; as without
    --pairs if None. A case with too few pairs is left out.
    """
    decisions = {key: decision for key, decision in screened(screen, margins).items() if decision}
    going = [key for key in screen if key not in decisions]
    suspects = len(going)
    for look in range(1, (most or looks.LOOKS) + 1):
        found = looked({key: confirm[key][: looks.pairs_at(look)] for key in going}, margins, look, suspects)
        decisions |= found
        suspects -= sum(decision.outcome == "regressed" for decision in found.values())
        going = [key for key, decision in found.items() if decision.outcome == "inconclusive"]
        if not going:
            break
    return {key: decisions[key] for key in screen if key in decisions}


def _centres(changes: Mapping[str, Sequence[float]]) -> dict[str, Centre]:
    return {key: Centre.of(values) for key, values in changes.items() if len(values) >= LEAST_PAIRS}


def _passed(centre: Centre, margin: Margin) -> Decision | None:
    """The decision of the screen's few pairs: OK, improved, or inconclusive where the case is too noisy; or None."""
    level = looks.PASS_LEVEL
    outcome = _passing(centre, margin, level)
    bounds = centre.low(level), centre.high(level)
    return Decision(outcome, "screen", centre.value, *bounds, centre.count) if outcome else None


def _undecided(centre: Centre, margin: Margin) -> Decision:
    more, level = _pairs_to_tell(centre, margin, looks.PAIRS_ALPHA), looks.PASS_LEVEL
    bounds = centre.low(level), centre.high(level)
    return Decision("inconclusive", "screen", centre.value, *bounds, centre.count, pairs_to_tell=more)


def _confirmed(
    centres: Mapping[str, Centre], margins: Mapping[str, Margin], levels: tuple[float, float], family: int
) -> dict[str, Decision]:
    """Decisions of one look. levels: for REGRESSED, over all cases together, and for OK, of each case."""
    alpha, passing = levels
    ps = [centre.p_below(margins[key].fail_limit) for key, centre in centres.items()]
    tests = holm(ps, alpha, max(family, len(ps)))
    return {
        key: _tested(centre, margins[key], p, test, passing)
        for (key, centre), p, test in zip(centres.items(), ps, tests, strict=True)
    }


def _tested(centre: Centre, margin: Margin, p: float, test: Tested, passing: float) -> Decision:
    """The decision of one test. `high` has the level that Holm's method held p against."""
    outcome: Outcome = "regressed" if test.rejected else _passing(centre, margin, passing) or "inconclusive"
    more = _pairs_to_tell(centre, margin, test.level) if outcome == "inconclusive" else None
    bounds = centre.low(passing), centre.high(test.level)
    return Decision(outcome, "confirm", centre.value, *bounds, centre.count, p, more)


def _passing(centre: Centre, margin: Margin, level: float) -> Outcome | None:
    """OK or improved; None if the loss may be as large as the margin. A case that is too noisy is never OK."""
    low = centre.low(level)
    if low <= margin.limit:
        return None
    if low > -margin.limit:
        return "improved"
    return "inconclusive" if margin.too_noisy else "ok"


def _pairs_to_tell(centre: Centre, margin: Margin, level: float) -> int | None:
    """Pairs of a confirmation that would decide, if the true centre is the one found so far; None if none would.

    That is a number of pairs at which the gate looks. Each look after the second has half the level of the look before.
    """
    passes = centre.value > margin.limit
    if (margin.too_noisy and passes) or margin.fail_limit <= centre.value < margin.limit:
        return None
    limit, level = (margin.limit, looks.PASS_LEVEL) if passes else (margin.fail_limit, level)
    needed = centre.count_to_tell(limit, level, TELL_POWER, TELL_MOST)
    return looks.pairs_at(looks.looks_for(needed))
