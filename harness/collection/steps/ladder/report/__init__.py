"""What a report says of a user's step: which rung to use, as code to copy; the ladder; families of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from harness import units
from harness.collection.steps.ladder import _rungs
from harness.collection.steps.ladder._code import FileForm, code
from harness.collection.steps.ladder._code_ranks import PROGRAM, Ranks
from harness.collection.steps.training import report as training
from harness.collection.steps.training.report import hidden, losses
from harness.model import FAILED
from harness.report.frame import Line, setting
from harness.report.tree import Block, CommandLine, Note, Section

ELSEWHERE = training.ELSEWHERE
_NAMED = 3
"""The most rungs that are named in a sentence."""


def sections(lines: Sequence[Line]) -> Iterator[Section]:
    """What to use, and what failed; then what the bundled steps' reports have."""
    advice: list[Block] = []
    for group in _groups(lines):
        advice += _advice(group)
    if advice:
        yield Section("What to use", tuple(advice))
    yield from training.sections(lines)
    yield from hidden.sections(lines)


def verdicts(lines: Sequence[Line]) -> Iterator[Note]:
    """The fastest rung of each setting, and the rungs that failed."""
    for group in _groups(lines):
        if best := fastest(group):
            yield Note(_told(group, best), "strong")
        yield from _failures(group)
    yield from training.verdicts(lines)


def fastest(lines: Sequence[Line]) -> Line | None:
    """The fastest rung whose losses and gradients were right; None if none has a time.

    It is surely faster than the baseline, by 95% intervals, or else the baseline itself: a change that gains nothing
    isn't worth it. A rung that is about several devices is none on one. Where rungs were trained from several seeds,
    its losses must lie within the spread of the baseline's seeds.
    """
    right = _right(lines)
    base = next((line for line in right if line.case.variant == line.scenario.baseline), None)
    ahead = takewhile(lambda line: line is not base, right)
    return next((line for line in ahead if not base or not _overlap(base, line)), base)


def _overlap(one: Line, other: Line) -> bool:
    """Whether the 95% intervals of two times have something in common."""
    first, second = one.subject.interval, other.subject.interval
    return bool(first and second and first[0] <= second[1] and second[0] <= first[1])


def _right(lines: Sequence[Line]) -> list[Line]:
    """The rungs that may be recommended, the fastest first."""
    timed = [line for line in lines if line.result.status == "ok" and line.result.time and not _is_idle(line)]
    if learned := _learned(lines):
        kept = {rung.line.case.id for rung in learned.rungs if rung is learned.baseline or learned.is_within(rung)}
        timed = [line for line in timed if line.case.id in kept]
    return sorted(timed, key=lambda line: line.result.time or 0.0)


def _is_idle(line: Line) -> bool:
    """Whether a rung changes nothing, since it is about several devices and has one."""
    return line.case.world == 1 and line.case.variant in _rungs.OF_RANKS


def _learned(lines: Sequence[Line]) -> losses.LossGroup | None:
    """The longer trainings of a group's rungs, with the baseline's among them; None without them.

    If several were made in different ways, the way of the most rungs counts.
    """
    found = [group for group in losses.groups(lines) if group.baseline.name == lines[0].scenario.baseline]
    return max(found, key=lambda group: len(group.rungs), default=None)


def program(lines: Sequence[Line], best: Line) -> str:
    """The code of a rung, from what the scenario tells of the file."""
    scenario = best.scenario
    timed = [line.case.variant for line in lines if line.result.time]
    rung = next((one for one in _rungs.of_tags(scenario.tags, timed) if one.name == best.case.variant), None)
    form, ranks = FileForm.of_tags(scenario.tags), _ranks(best)
    return code(rung, best.case.dtype, scenario.source, form, best.case.symbols["B"], ranks) if rung else ""


def _ranks(best: Line) -> Ranks:
    return Ranks(best.case.world, _rungs.UNUSED in best.scenario.tags)


def _groups(lines: Sequence[Line]) -> list[list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.case.group, []).append(line)
    return list(found.values())


def _advice(group: Sequence[Line]) -> Iterator[Block]:
    best = fastest(group)
    if best is None:
        return
    yield Note(_told(group, best), "strong")
    yield from _failures(group)
    source = best.scenario.source
    beside = f", to be kept beside {source}" if source.endswith(".py") else ""
    if text := program(group, best):
        yield Note(f"The code of {best.case.variant}{beside}:")
        yield CommandLine(text, "python")
        if best.case.world > 1:
            yield Note(f"Saved as {PROGRAM}, it is started by torchrun, with a process for each device:")
            yield CommandLine(_ranks(best).command)


def _told(group: Sequence[Line], best: Line) -> str:
    base = next((line for line in group if line.case.variant == best.scenario.baseline), None)
    name, where = best.case.variant, f"{best.case.dtype}, {setting(best.case)}"
    took = units.seconds(best.result.time or 0.0)
    together = _together(best)
    if base is best and any(line is not base for line in _right(group)):
        return f"No rung is surely faster than {name} ({where}): {took} a step{together}.{_ties(group, best)}"
    if base is None or not base.result.time or base is best:
        return f"The fastest rung is {name} ({where}): {took} a step{together}.{_ties(group, best)}"
    gained = units.ratio(base.result.time / (best.result.time or 1.0))
    return (
        f"Use {name} ({where}): {took} a step{together}, {gained} as fast as {base.case.variant}; its gradients, and "
        f"the losses of its first steps, are those of {base.case.variant} as far as its arithmetic lets them be. "
        f"{_of_seeds(group, best)}{_ties(group, best)}"
    )


def _ties(group: Sequence[Line], best: Line) -> str:
    """Which rungs may be as fast as the best one, in a sentence with a space before it; '' for none."""
    near = [line for line in _right(group) if line is not best and _overlap(line, best)]
    more = f" and {len(near) - _NAMED} more" if len(near) > _NAMED else ""
    names = ", ".join(line.case.variant for line in near[:_NAMED])
    return f" These may be as fast, by 95% intervals that overlap: {names}{more}." if near else ""


def _together(best: Line) -> str:
    """What several devices do together, in a part of a sentence."""
    world, values = best.case.world, best.values
    items = values.get("items")
    if world == 1 or not items:
        return ""
    told = f", {units.significant(items)} items a second on {world} devices"
    share, low, high = (values.get(name) for name in ("efficiency", "efficiency_low", "efficiency_high"))
    if not share:
        return told
    between = f" ({units.percent(low)} to {units.percent(high)})" if low and high else ""
    return f"{told}, an efficiency of {units.percent(share)}{between}"


def _of_seeds(group: Sequence[Line], best: Line) -> str:
    """What longer trainings say of a rung, in a sentence."""
    learned = _learned(group)
    if learned is None:
        return "Losses of longer trainings weren't compared: --seeds 5 does so."
    steps, _, seeds = learned.baseline.plan
    (rung,) = (rung for rung in learned.rungs if rung.line.case.id == best.case.id)
    low, high = learned.band
    return (
        f"Its mean loss over {steps} steps from {seeds} seeds, {rung.loss:.4f}, lies within the spread of "
        f"{learned.baseline.name}'s seeds, {low:.4f} to {high:.4f}."
    )


def _failures(group: Sequence[Line]) -> Iterator[Note]:
    """A sentence for each rung that failed, with its reason."""
    for line in group:
        result = line.result
        if result.status in FAILED or result.status == "out_of_memory":
            told = next(iter((result.error or "").splitlines()), "")
            yield Note(f"{line.case.variant} isn't among them ({result.status}): {told}", "warning")
    if learned := _learned(group):
        trained = {rung.line.case.id for rung in learned.rungs}
        for line in group:
            if line.result.status == "ok" and line.case.id not in trained and not _is_idle(line):
                yield Note(f"{line.case.variant} isn't among them: it wasn't trained from several seeds", "warning")
        for rung in learned.off:
            low, high = learned.band
            told = f"its mean loss from several seeds is {rung.loss:.4f}; {low:.4f} to {high:.4f} is their spread"
            yield Note(f"{rung.name} isn't among them: {told} in {learned.baseline.name}", "warning")
