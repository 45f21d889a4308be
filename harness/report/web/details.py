"""What the page tells of a single case, as blocks of the tree: what bounds it, its figures, what made the numbers."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from harness import devices, explain, units
from harness.devices import Device
from harness.errors import brief, described
from harness.metrics import named
from harness.model import Conditions, KernelFacts, Result, Run
from harness.ops.catalogue import LOADED
from harness.report import kernels, preface
from harness.report.frame import Line
from harness.report.tree import Block, Column, CommandLine, Facts, Note, Section, Table, text_column

_BINS = 24
_TOLD = frozenset({"time", "low", "high", "noise", "speedup"})
"""Metrics that are told in words of their own."""


@dataclass(frozen=True, slots=True)
class About:
    """What the cases of a page have in common. rules: looks for the rules of `harness explain` when it is called."""

    run: Run
    kinds: Mapping[str, Device] = field(default_factory=devices.kinds)
    rules: Callable[[], Mapping[str, explain.CauseRule]] = field(default_factory=lambda: cache(explain.all_rules))


def blocks(line: Line, group: Sequence[Line], about: About) -> Iterator[Block]:
    """The blocks of a case. group: the lines of all variants of its comparison."""
    result = line.result
    if summary := _summary(line):
        yield Note(summary)
    if result.error:
        yield Section(result.status.replace("_", " "), (CommandLine(result.error.strip()),))
    for warning in result.warnings:
        yield Note(warning.message, "warning", f"warning {warning.code}", advice=warning.advice)
    # The scenarios of one file are named '<file>.<op>'.
    again = [f"harness run {shlex.quote(line.scenario.name.partition('.')[0])} --only {shlex.quote(line.case.id)}"]
    if result.time is not None:
        results, found = [own.result for own in group], [one for own in group for one in own.attachments]
        kind = about.kinds.get(line.case.device)
        known = explain.known_of(about.run, line.scenario.name, result, line.subject, results, found, kind)
        yield Section("Why it takes so long", tuple(_reasons(known, about)))
        again += filter(None, [explain.command(known)])
    yield Section("Its figures", (Facts(tuple(_figures(line))),))
    if compiled := tuple(dict.fromkeys(kernel for m in result.measurements for kernel in m.kernels)):
        yield Section("What the compiler made", (_compiled(compiled),))
    if seen := tuple(kernels.tables(line.attachments)):
        yield Section("What profilers counted", seen)
    yield Section("Measure it again", tuple(map(CommandLine, again)))
    yield Section("How it was measured", (Facts(tuple(_measured(result))),))


def _summary(line: Line) -> str:
    """What the variant does, as its op says today."""
    op = LOADED.get(line.case.op)
    variant = op.variants.get(line.case.variant) if op else None
    return f"{line.case.variant} ({line.role}): {variant.summary}." if variant and variant.summary else ""


def _figures(line: Line) -> Iterator[tuple[str, str]]:
    values = line.values
    if line.subject.time is not None:
        yield "time", told_time(line)
    if values["speedup"] is not None:
        yield f"time of {line.scenario.baseline} over this time", units.ratio(values["speedup"])
    for name, value in values.items():
        if value is not None and name not in _TOLD and math.isfinite(value):
            yield named(name).title, named(name).written(value)
    if line.subject.bound and line.subject.best:
        yield "time at best", f"{units.seconds(line.subject.best)}, by {line.subject.bound.limit}"


def told_time(line: Line) -> str:
    """The time with its interval."""
    time, bounds = line.subject.time, line.subject.interval
    if time is None:
        return line.result.status.replace("_", " ")
    if bounds is None:
        return f"{units.seconds(time)}, too few samples for an interval"
    return f"{units.seconds(time)}, 95% interval {units.seconds(bounds[0])} to {units.seconds(bounds[1])}"


def _reasons(known: explain.Known, about: About) -> Iterator[Note | Section]:
    """What `harness explain` says of the case."""
    try:
        found = explain.explain(known, about.rules())
        verdict = explain.verdict(known, found)
    except Exception as error:  # a rule that fails costs its own words, not the page
        yield Note(f"no reason can be given: {brief(described(error))}", "warning")
        return
    yield Note(verdict, "strong")
    for reason in found:
        saves = f" It saves at most {units.seconds(reason.saves)}." if reason.saves else ""
        told = "" if reason.verdict == verdict else reason.verdict
        yield Section(
            "", (*map(Note, filter(None, [told, *reason.sums])), Note(f"{reason.remedy}.{saves}", label="Remedy"))
        )


def _compiled(found: Sequence[KernelFacts]) -> Table:
    columns = {"registers": "registers", "local bytes": "local", "shared bytes": "shared"}
    return Table(
        (
            text_column("kernel", (kernel.name for kernel in found), code=True),
            *(
                Column(head, tuple(float(getattr(k, name)) for k in found), units.COUNT)
                for head, name in columns.items()
            ),
        )
    )


def _measured(result: Result) -> Iterator[tuple[str, str]]:
    first = result.measurements[0]
    samples, processes = sum(len(m.samples) for m in result.measurements), len(result.measurements)
    if result.timer:
        yield "timer", result.timer
        yield "samples", f"{samples}, in {processes} fresh process" + "es"[: 2 * (processes > 1)]
    if first.batch and first.sets:
        yield "calls", f"{first.batch} a sample, over {units.plural(first.sets, 'set')} of buffers"
    for label, state in (("device before", first.before), ("device after", first.after)):
        if told := conditions(state):
            yield label, told
    if first.code:
        yield "code", f"{first.code.op} {first.code.digest[: preface.DIGEST]}"


def conditions(state: Conditions | None) -> str:
    """Clocks, temperature and power of a device at one moment, as far as it tells them."""
    if state is None:
        return ""
    told = {
        "SM {} MHz": state.sm_clock_hz and f"{state.sm_clock_hz / 1e6:.0f}",
        "memory {} MHz": state.memory_clock_hz and f"{state.memory_clock_hz / 1e6:.0f}",
        "{} °C": state.temperature_c and f"{state.temperature_c:.0f}",
        "{} W": state.power_w and f"{state.power_w:.0f}",
        "clocks lowered: {}": ", ".join(state.reasons),
    }
    return ", ".join(form.format(value) for form, value in told.items() if value)


def histogram(result: Result) -> list[float | list[int]] | None:
    """The samples of a case in bins of equal width: the least, the largest, and how many lie in each bin."""
    samples = sorted(sample for m in result.measurements for sample in m.samples)
    if result.time is None or len(samples) < 2 or samples[0] == samples[-1]:
        return None
    low, high = samples[0], samples[-1]
    counts: dict[int, int] = defaultdict(int)
    for sample in samples:
        counts[min(int((sample - low) / (high - low) * _BINS), _BINS - 1)] += 1
    return [low, high, [counts[place] for place in range(_BINS)]]
