"""What `harness tune` prints: the plans that a search would time, and what a search has found."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import typer

from harness import units
from harness.cli.columns import aligned
from harness.cli.estimate import Estimate
from harness.errors import brief
from harness.tune import in_parts, schedule
from harness.units import plural

if TYPE_CHECKING:
    from harness.model import Timing
    from harness.tune import Ahead, Candidate, Listed, Tuned

_SHOWN = 12  # plans of a case that --dry-run lists, and reasons


def lines(each: Listed) -> list[str]:
    """The plans of a case, the rule's and the table's first, and how many aren't timed for which reason."""
    if not each.candidates:
        return [f"{each.case.id}: no plan: {each.obstacle}"]
    good = sorted(_to_time(each), key=lambda one: not (one.rule or one.plan == each.taken))
    rows = [("plan", "registers", "shared", "")]
    rows += [(one.text, str(one.registers or ""), str(one.shared or ""), _whence(one, each)) for one in good[:_SHOWN]]
    why = sorted(each.refused.items(), key=lambda found: -found[1])
    refused = [f"  refused: {plural(count, 'plan')}: {brief(reason)}" for reason, count in why[:_SHOWN]]
    out = [one for one in each.candidates if one.dropped]
    left_out = [f"  left out: {one.text}: {one.dropped}{' (the rule)' if one.rule else ''}" for one in out[:_SHOWN]]
    listed = [*aligned(rows), *_more(good)]
    reasons = [*refused, *_more(why, " reasons"), *left_out, *_more(out, " left out")]
    return [f"{each.case.id}: {_counts([each])}", *listed, *reasons]


def _more(found: Sequence[object], what: str = "") -> list[str]:
    return [f"  and {len(found) - _SHOWN} more{what}"] if len(found) > _SHOWN else []


def _to_time(each: Listed) -> list[Candidate]:
    return [one for one in each.candidates if not one.dropped]


def _counts(found: Sequence[Listed]) -> str:
    """How many plans are timed, how many the variant refuses, and how many the compiler's facts rule out."""
    good = sum(len(_to_time(each)) for each in found)
    refused = sum(sum(each.refused.values()) for each in found)
    out = sum(len(each.candidates) for each in found) - good
    return f"{plural(good, 'plan')} to time, {refused} refused, {out} left out"


def total(by_op: Sequence[Sequence[Listed]], timing: Timing) -> str:
    """What the search of all ops takes, each op with its cases."""
    rounds = [each for found in by_op for each in _rounds(found, timing)]
    every = [each for found in by_op for each in found if each.candidates]
    counts = f"{_counts(every)} at {len(every)} sizes; " if len(every) > 1 else ""
    measured = sum(plans for plans, _ in rounds)
    about = timedelta(seconds=round(Estimate.of_search(rounds)))
    what = f"{plural(measured, 'measurement')} in {plural(len(rounds), 'round')}"
    return f"{counts}{what}, about {about}; --budget ends a search sooner"


def _whence(one: Candidate, each: Listed) -> str:
    """Where a plan comes from that a case may take."""
    marks = ["by the rule"] * one.rule + ["by the table"] * (one.plan == each.taken)
    return ", ".join(marks)


def _rounds(found: Sequence[Listed], timing: Timing) -> list[tuple[int, float]]:
    """The rounds of an op's search: how many plans are timed, each for so many seconds at most."""
    counts = [sum(not one.dropped for one in each.candidates) for each in found if each.candidates]
    places = in_parts([len(each.candidates) for each in found if each.candidates])
    return [each for part in places for each in schedule([counts[place] for place in part], timing)]


def tell(result: Tuned) -> None:
    """The plan to take at each case, what it gains, and which plans were wrong."""
    for case, found in result.found.items():
        for text, why in found.failed:
            typer.echo(f"{case.id}: {text}: {why}", err=True)
        if not found.complete:
            continue
        if not found.timed:
            typer.echo(f"{case.id}: no plan was timed")
            continue
        best = found.timed[0]
        rule = next((timed for timed in found.timed if timed.rule), None)
        gain = f", {units.RATIO.write(rule.time / best.time)} over the rule's" if rule and rule is not best else ""
        plan = ".".join(f"{name}{value}" for name, value in best.plan.items())
        kept = "the rule's plan stays" if best.rule else plan
        typer.echo(f"{case.id}: {kept}, {units.seconds(best.time)}{gain} ({found.tried} tried)")
    if result.file:
        typer.echo(f"table: {result.file}")


def begun(each: Ahead, number: int, count: int) -> str:
    """Which of several ops is searched now."""
    return f"{each.wanted.op}: {plural(each.plans, 'plan')} at {plural(each.sizes, 'size')} (op {number} of {count})"


def over(ahead: Sequence[Ahead], done: Sequence[int]) -> str:
    """What is left when the time is over, of searches that have done so many sizes each."""
    both = zip(ahead, done, strict=True)
    left = [f"{each.wanted.op} ({sizes} of {each.sizes})" for each, sizes in both if sizes < each.sizes]
    which = f"left: {', '.join(left)}; " if len(ahead) > 1 else ""
    every = plural(sum(each.sizes for each in ahead), "size")
    return f"the time is over; {sum(done)} of {every} done; {which}the same command goes on"
