"""What was found, in one verdict: from the outcomes of checks and from a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import explain, metrics, units
from harness.errors import Exit, brief
from harness.judge.records import CANDIDATE, IN_PARTS, STRIDES, Asked, Calls, Checked, Judgement, Sheet, Timed, Verdict
from harness.model import FAILED, Measurement, Result, Run, Warning
from harness.model.measurement import by_group

UNCOUNTED = "Torch's own time is above the ceiling, too, so the bytes of inputs aren't what has to be read: no ceiling."
_DECLINED = re.compile(r"(ValueError|NotImplementedError|AssertionError)\b")
"""How a candidate says that it isn't made for a size."""
_PYTHON = (
    "The candidate's Python runs in the process that times it. What is known to please a timer is looked for, but "
    "Python can't hold code that wants to hide: read the candidate, or judge kernels alone by --isolated."
)
_KERNELS = (
    "The kernels run in the process that times them: a kernel that writes out of its bounds can change its results."
)
_RIGHTS = (
    "What a candidate's file does, it does with your rights. Judge what you would run by hand, or use a machine that "
    "holds no secrets."
)
_DRAWN = (
    "Right means: for the sizes and values that were drawn. The seed draws the same sizes again; values of timed calls "
    "are new each time."
)


@dataclass(frozen=True, slots=True)
class Ruling:
    """Makes the judgement of a request of what is known by then."""

    asked: Asked
    sha256: str
    command: tuple[str, ...]
    sheet: Sheet | None = None
    machine: str = ""

    def ended(self, verdict: Verdict, why: str, checked: Sequence[Checked] = ()) -> Judgement:
        """The judgement of a candidate without a time."""
        return self._judgement(verdict, f"{verdict.replace('_', ' ')}: {why}", tuple(checked))

    def of_checks(self, found: Iterable[tuple[str, Measurement]]) -> Judgement | None:
        """The judgement of a candidate that fails a check, or can't run at the given sizes; None for another one."""
        checked = checks(found)
        bad = next((one for one in checked if one.status in FAILED or is_out(one.sizes, one.status)), None)
        return self.ended(_verdict(bad.status), f"{bad.why} ({bad.case})", checked) if bad else None

    def of_run(self, run: Run, found: Iterable[tuple[str, Measurement]], calls: Calls | None) -> Judgement:
        """The judgement of a candidate that was right in all checks."""
        checked = checks(found)
        timed = tuple(_timed(run, group) for group in by_group(run.results).values())
        made = self._judgement("right", "", checked, timed, calls)
        without = [one for one in timed if one.time is None]
        if bad := next((one for one in without if one.status in FAILED), next(iter(without), None)):
            verdict = _verdict(bad.status)
            line = f"{verdict.replace('_', ' ')}: {bad.why or 'it has no time'} ({bad.case})"
            return replace(made, verdict=verdict, line=line, code=Exit.CASES_FAILED)
        speedup = _mean([one.speedup for one in timed])
        low = _mean([one.speedup_low for one in timed])
        high = _mean([one.speedup_high for one in timed])
        limit = self.asked.at_least
        line, code = _line(timed, speedup, low, high), Exit.OK
        if calls and calls.only_torch:
            line += "; it only calls torch"
        if self.sheet and self.sheet.is_constant:
            line += "; the reference gives the same for other inputs"
        if any(text.startswith(f"{STRIDES}: ") for one in timed for text in one.warnings):
            line += "; its outputs lie in memory in another order than the reference's"
        if {one.status for one in checked if one.sizes == "unseen"} == {"declined"}:
            line += "; it declines all sizes but the given ones"
        if limit is not None and (high is None or high < limit):
            line, code = f"{line}; slower than --at-least {limit:g}x", Exit.GATE_FAILED
        return replace(made, line=line, code=code, speedup=speedup)

    def _judgement(
        self,
        verdict: Verdict,
        line: str,
        checked: tuple[Checked, ...] = (),
        timed: tuple[Timed, ...] = (),
        calls: Calls | None = None,
    ) -> Judgement:
        asked, sheet = self.asked, self.sheet
        return Judgement(
            verdict=verdict,
            line=line,
            code=Exit.CASES_FAILED,
            candidate=str(asked.candidate),
            sha256=self.sha256,
            form=sheet.form if sheet else "",
            reference=_reference(sheet) if sheet else "",
            machine=self.machine,
            seed=asked.seed,
            command=" ".join(self.command),
            checked=checked,
            timed=timed,
            calls=calls,
            notes=sheet.notes if sheet else (),
            unpromised=(_KERNELS if asked.isolated else _PYTHON, _RIGHTS, _DRAWN),
        )


def _reference(sheet: Sheet) -> str:
    return f"op {sheet.op}" if sheet.form == "ops" else Path(sheet.reference).name


def declines(measurement: Measurement) -> bool:
    """Whether a candidate says that it isn't made for a case: it is unsupported, or raises an error that says so."""
    if measurement.status == "crashed":
        return bool(_DECLINED.match(measurement.error or ""))
    return measurement.status == "unsupported"


def is_out(sizes: str, status: str) -> bool:
    """Whether a candidate can't run at sizes that it was given, so that torch's times at these help nobody."""
    return sizes == "given" and status == "unsupported"


def checks(found: Iterable[tuple[str, Measurement]]) -> tuple[Checked, ...]:
    """The outcome of each check."""
    return tuple(
        Checked(
            one.case.id, "declined" if kind == "unseen" and declines(one) else one.status, brief(one.error or ""), kind
        )
        for kind, one in found
    )


def ceiling_is_wrong(run: Run) -> bool:
    """Whether torch is faster than possible: then the work is counted wrong."""
    return any(one.status == "implausible" and one.case.variant != CANDIDATE for one in run.results)


def _verdict(status: str) -> Verdict:
    known: dict[str, Verdict] = {
        "wrong": "wrong",
        "implausible": "implausible",
        "timeout": "timeout",
        "out_of_memory": "out_of_memory",
        "unsupported": "unsupported",
    }
    return known.get(status, "crashed")


def _timed(run: Run, group: Sequence[Result]) -> Timed:
    """The candidate's case beside torch's cases of the same group."""
    own = next(one for one in group if one.case.variant == CANDIDATE)
    others = [one for one in group if one.case.variant != CANDIDATE]
    baselines = {one.case.variant: one.time for one in others if one.time is not None}
    missing = {one.case.variant: f"{one.status}: {brief(one.error or '')}" for one in others if one.time is None}
    found = Timed(own.case.id, own.status, brief(own.error or ""), baselines=baselines, missing=missing)
    if own.time is None:
        return found
    subject = metrics.Subject.of(own, run.limits)
    bounds = subject.interval
    found = replace(
        found,
        time=own.time,
        low=bounds[0] if bounds else None,
        high=bounds[1] if bounds else None,
        of_ceiling=metrics.METRICS["of_ceiling"].value(subject),
        reason=_reason(run, own.case.id),
        warnings=tuple(
            dict.fromkeys("; ".join(filter(None, (f"{w.code}: {w.message}", w.advice))) for w in _warnings(own, others))
        ),
    )
    if not baselines:
        return found
    best = min(others, key=lambda one: math.inf if one.time is None else one.time)
    theirs = metrics.Subject.of(best, run.limits).interval
    ends = (theirs[0] / bounds[1], theirs[1] / bounds[0]) if theirs and bounds else (None, None)
    assert best.time
    return replace(
        found,
        best=best.case.variant,
        speedup=best.time / own.time,
        speedup_low=ends[0],
        speedup_high=ends[1],
    )


def _warnings(own: Result, others: Sequence[Result]) -> list[Warning]:
    """The candidate's, and of torch's what makes the comparison unfair."""
    return [*own.warnings, *(warning for one in others for warning in one.warnings if warning.code == IN_PARTS)]


def _reason(run: Run, case: str) -> str:
    """Why the candidate isn't faster, as far as that is known without counters."""
    known = explain.known(run, case)
    return explain.verdict(known, explain.explain(known))


def _mean(values: Sequence[float | None]) -> float | None:
    """The geometric mean; None where a value isn't known."""
    known = [value for value in values if value]
    return math.exp(sum(map(math.log, known)) / len(known)) if known and len(known) == len(values) else None


def _line(timed: Sequence[Timed], speedup: float | None, low: float | None, high: float | None) -> str:
    """The verdict on a candidate that is right."""
    parts = ["right"]
    if speedup is None:
        parts.append("no time of torch to compare with")
    else:
        bounds = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
        best = {one.best for one in timed}
        over = _NAMES.get(best.pop(), "torch") if len(best) == 1 else "torch at its best"
        several = f" over {len(timed)} cases (geometric mean)" if len(timed) > 1 else ""
        parts.append(f"{speedup:.2f}x{bounds} {over}{several}")
    shares = [one.of_ceiling for one in timed if one.of_ceiling is not None]
    if len(shares) < len(timed):
        parts.append("no ceiling is known")
    elif above := sum(share > metrics.ABOVE_CEILING for share in shares):
        where = f" in {above} of {len(timed)} cases" if len(timed) > 1 else ""
        parts.append(f"faster than the ceiling{where}, so the ceiling is wrong there (see below)")
    else:
        ends = dict.fromkeys(units.percent(share, 0) for share in (min(shares), max(shares)))
        parts.append(f"{' to '.join(ends)} of the ceiling")
    return ", ".join(parts)


_NAMES = {"eager": "torch", "compile": "torch.compile", "compile_autotune": "torch.compile (max-autotune)"}
