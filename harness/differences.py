"""Runs beside a baseline, case by case: which times differ by more than their noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness import units
from harness.metrics import interval
from harness.model import Case, Difference, Machine, Measurement, Result, Run, Work

Verdict = Literal["faster", "slower", "~", "missing"]
_PEAKS_ALIKE = 0.05
"""Relative difference up to which the peaks of two runs are alike: streams of one machine repeat within that."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Runs beside a baseline.

    baseline: its name. names: of the other runs. differences: of each of them, the same cases in the same order.
    notes: what differs besides times, and could explain a change; one sentence for each difference.
    """

    baseline: str
    names: tuple[str, ...]
    differences: tuple[tuple[Difference, ...], ...]
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> tuple[Difference, ...]:
        """The differences of a run."""
        return self.differences[self.names.index(name)]

    def geomean(self, name: str) -> float | None:
        """The geometric mean of the ratios of a run, over the cases with a time in both; None if there is none."""
        ratios = [each.ratio for each in self.of(name) if each.ratio]
        return statistics.geometric_mean(ratios) if ratios else None

    def slower(self, by: float = 0.0) -> tuple[tuple[str, Difference], ...]:
        """The runs and cases that take longer than the baseline by more than `by`, a share of the baseline's time.

        The whole 95% interval of the ratio must say so: what noise could have done isn't slower.
        """
        if not 0 <= by < math.inf:
            raise ValueError(f"by is a share from 0 on, such as 0.01, found {by}")
        found = ((name, each) for name in self.names for each in self.of(name))
        return tuple((name, each) for name, each in found if each.verdict == "slower" and _is_above(each, by))


def _is_above(difference: Difference, by: float) -> bool:
    """Whether the interval's end that is nearest to the baseline is slower by more than a share."""
    return difference.high is not None and 1 / difference.high - 1 > by


def compare_all(baseline: str, runs: Mapping[str, Run]) -> Compared:
    """All runs beside the one that is named `baseline`: each case of any run, the baseline's first."""
    reference = runs[baseline]
    names = tuple(name for name in runs if name != baseline)
    by_id = [{each.case.id: each for each in compare(reference, runs[name])} for name in names]
    cases = {key: each.case for found in by_id for key, each in found.items()}
    absent = {key: _difference(case, None, None) for key, case in cases.items()}
    differences = tuple(tuple(found.get(key, absent[key]) for key in cases) for found in by_id)
    notes = [
        (f"{name}: {text}" if len(names) > 1 else text) for name in names for text in mismatches(reference, runs[name])
    ]
    return Compared(baseline, names, differences, tuple(notes))


def compare(reference: Run, run: Run) -> list[Difference]:
    """Every case of either run, matched by id: the cases of the reference in its order, then the cases of `run` alone.

    `ratio` is the reference's time over the run's. The interval of the ratio takes both times at opposite ends of their
    own intervals (`metrics.interval`): low = reference's low / run's high, high = reference's high / run's low. The
    verdict is '~' where the two intervals overlap (the interval of the ratio then holds 1), or where there are too few
    samples for an interval. `samples` counts the samples of the run that has fewer.
    """
    before = {result.case.id: result for result in reference.results}
    after = {result.case.id: result for result in run.results}
    cases = {key: result.case for key, result in (before | after).items()}
    return [_difference(case, before.get(key), after.get(key)) for key, case in cases.items()]


def _difference(case: Case, before: Result | None, after: Result | None) -> Difference:
    old, new = (result.time if result else None for result in (before, after))
    if before is None or after is None or old is None or new is None:
        absent = (_absence("the reference", before), _absence("the run", after))
        return Difference(case, old, new, None, None, None, "missing", note="; ".join(filter(None, absent)))
    samples = min(_samples(before), _samples(after))
    ends = interval(before.measurements), interval(after.measurements)
    if ends[0] is None or ends[1] is None:
        note = f"{samples} samples are too few for an interval"
        return Difference(case, old, new, old / new, None, None, "~", samples, note)
    low, high = ends[0][0] / ends[1][1], ends[0][1] / ends[1][0]
    verdict: Verdict = "faster" if low > 1 else "slower" if high < 1 else "~"
    return Difference(case, old, new, old / new, low, high, verdict, samples)


def _absence(which: str, result: Result | None) -> str:
    """Why a run has no time for the case; empty if it has one."""
    if result is None:
        return f"not in {which}"
    return "" if result.time is not None else f"{result.status} in {which}"


def _samples(result: Result) -> int:
    return sum(len(m.samples) for m in result.measurements)


def mismatches(reference: Run, run: Run) -> list[str]:
    """What differs between the two runs besides times, and could explain a change; one sentence for each difference."""
    setup = other_setup(reference, run)
    return [*other_harness(reference, run), *setup, *_peaks(reference, run), *_works(reference, run)]


def other_harness(reference: Run, run: Run) -> list[str]:
    """One sentence if different versions of the harness measured the two runs; none if one version did."""
    old, new = (side.header.harness_version or "an unknown version" for side in (reference, run))
    return [] if old == new else [f"the harness differs: {old} -> {new}"]


def other_setup(reference: Run, run: Run) -> list[str]:
    """What differs in how the two runs measured: machine, software, timers; one sentence for each difference."""
    return [*_machines(reference.header.machine, run.header.machine), *_timers(reference, run)]


def work_fields(before: Work, after: Work, *, strict: bool = False) -> tuple[str, ...]:
    """What differs in the work of a case, in words; empty if nothing does.

    Operations, and bytes that are read again, differ only where both sides declare some, since an op need not declare
    any, and older runs have none. With `strict` they also differ where one side declares some.
    """
    same = {
        "bytes read": before.read == after.read,
        "bytes written": before.written == after.written,
        "bytes sent": before.sent == after.sent,
        "bytes read again": _alike(before.again, after.again, strict),
        "operations": _alike(before.operations, after.operations, strict),
        "types of operations": before.operations != after.operations or {*before.flops} == {*after.flops},
        "items": before.items == after.items,
    }
    return tuple(name for name, alike in same.items() if not alike)


def _alike(before: object, after: object, strict: bool) -> bool:
    return before == after or (not strict and not (before and after))


def _machines(before: Machine, after: Machine) -> Iterator[str]:
    if before.fingerprint != after.fingerprint:
        yield (
            f"the machines differ: {before.name} ({before.fingerprint}) in the reference, "
            f"{after.name} ({after.fingerprint}) in the run"
        )
    old = {"driver": before.driver, **dict(before.versions)}
    new = {"driver": after.driver, **dict(after.versions)}
    changed = [f"{k} {old.get(k) or 'none'} -> {new.get(k) or 'none'}" for k in old | new if old.get(k) != new.get(k)]
    if changed:
        yield f"the software differs: {', '.join(changed)}"


def _peaks(reference: Run, run: Run) -> Iterator[str]:
    before, after = (side.limits.peak if side.limits else None for side in (reference, run))
    if before and after and abs(after / before - 1) > _PEAKS_ALIKE:
        yield (
            f"the best copies differ: {units.rate(before)} in the reference, {units.rate(after)} in the run "
            f"({after / before:.2f}x), so times may differ by the machine, or by other work on it"
        )


def _timers(reference: Run, run: Run) -> Iterator[str]:
    before, after = _by_id(reference.measurements), _by_id(run.measurements)
    changed = [key for key in before.keys() & after.keys() if before[key].timer != after[key].timer]
    if changed:
        first = min(changed)
        timers = f"{before[first].timer} -> {after[first].timer}"
        yield f"timed in another way: {first} ({timers}){_more(changed)}"


def _works(reference: Run, run: Run) -> Iterator[str]:
    before, after = _by_id(reference.measurements), _by_id(run.measurements)
    works = {key: (before[key].work_done, after[key].work_done) for key in before.keys() & after.keys()}
    changed = [key for key, (old, new) in works.items() if old and new and work_fields(old, new)]
    if changed:
        yield f"other bytes or operations under the same name: {min(changed)}{_more(changed)}"


def _more(cases: Sequence[str]) -> str:
    return f" and {len(cases) - 1} more" if len(cases) > 1 else ""


def _by_id(measurements: tuple[Measurement, ...]) -> dict[str, Measurement]:
    """A timed measurement of each case: the first process's stands for all."""
    return {m.case.id: m for m in reversed(measurements) if m.time is not None}
