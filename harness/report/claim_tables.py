"""The claims of public texts as a table and as sentences, and what the words of both mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.report.claims import SAME, Comparison, contradicted, is_at_least, is_of_other_hardware
from harness.report.counted import LIMIT
from harness.report.text import cell
from harness.report.tree import Bounds, Cell, Column, Note, Quantities, Table, text_column

MEASURED = "measured"
NO_FIGURE = "no figure"
"""What stands in the place of a claimed value where the text gives none."""
BY_COUNT = "by count"
BY_COUNTERS = "by counters"
BY_TRACE = "by a trace"
_OPPOSITE = {"faster": "slower", "less": "more"}


def table(found: Sequence[Comparison]) -> Table:
    """The comparisons as a table, without columns that would be empty."""
    told = any(how(c) != MEASURED for c in found if c.found)
    made = (
        text_column("row", (c.claim.row for c in found)),
        text_column("what", map(what, found)),
        Column("claimed", tuple(map(claimed, found))),
        text_column("meant", map(meant, found)),
        text_column("on", ("" if claimed(c) == NO_FIGURE else c.claim.hardware for c in found)),
        Column("here", tuple(map(measured, found)), right=False),
        Column("interval", tuple(map(interval, found)), right=False),
        text_column("over", map(interval_over, found)),
        text_column("how", (_how_told(c) if told else "" for c in found)),
        text_column("verdict", (c.told for c in found)),
        text_column("in words", (c.claim.text for c in found)),
    )
    return Table(tuple(column for column in made if not column.is_empty))


def what(c: Comparison) -> str:
    """What a claim is of: 'tuned: speed-up over eager'."""
    return f"{c.claim.variant}: {c.metric.title}" + (f" over {c.over}" if c.over else "")


def claimed(c: Comparison) -> Cell:
    """The text's figure, or what it says without one."""
    if c.claim.value is not None:
        return Quantities((c.claim.value,), c.metric.unit)
    if c.claim.says == "nothing":
        return NO_FIGURE
    return c.metric.said if c.claim.says == "better" else _OPPOSITE.get(c.metric.said, "worse")


def meant(c: Comparison) -> str:
    """How a figure has to lie to the text's figure: 'or more', 'or less', 'the same'."""
    if c.claim.value is None or c.claim.says == "nothing":
        return ""
    return "the same" if c.claim.says == "equal" else "or more" if is_at_least(c.claim, c.metric) else "or less"


def measured(c: Comparison) -> Cell:
    """The figures of all cases, or why there are none."""
    return Quantities(c.values, c.metric.unit) if c.found else f"not measured: {c.reason}"


def interval(c: Comparison) -> Cell:
    """The 95% interval; of several cases from the lowest bound to the highest."""
    return Bounds(*c.bounds, c.metric.unit) if c.bounds and not _is_reading(c) else ""


def _is_reading(c: Comparison) -> bool:
    return all(one.figure.over == "counters" for one in c.found)


def interval_over(c: Comparison) -> str:
    """What the interval is over: '3 processes', 'one process'."""
    return ", ".join(dict.fromkeys(one.figure.told for one in c.found if one.figure.told and not _is_reading(c)))


def how(c: Comparison) -> str:
    """How the figures were found, and in how many cases if only some of them have counters."""
    if not c.found:
        return ""
    if c.is_by_counters:
        some = f" ({len(c.found)} of {c.cases} cases)" if len(c.found) < c.cases else ""
        return f"{BY_COUNTERS}{some}"
    if c.metric.by_trace:
        return BY_TRACE
    return BY_COUNT if c.metric.by_count else MEASURED


def _how_told(c: Comparison) -> str:
    """How the figures were found, with the figures by count where counters contradict them."""
    counts = contradicted(c.found)
    if not counts:
        return how(c)
    # Counts that are written alike stand there once.
    shown = counts if len(set(map(c.metric.written, counts))) > 1 else counts[:1]
    return f"{how(c)}, not {cell(Quantities(shown, c.metric.unit))} as counted"


def notes(found: Sequence[Comparison]) -> list[Note]:
    """The comparisons as sentences."""
    return [Note(_sentence(c)) for c in found]


def _sentence(c: Comparison) -> str:
    bounds = f" [{cell(interval(c))}, {interval_over(c)}]" if interval(c) else ""
    told = f" {_how_told(c)}" if how(c) not in ("", MEASURED) else ""
    here = f"here {cell(measured(c))}{bounds}{told}"
    if claimed(c) == NO_FIGURE:
        return f"{c.claim.row} has no figure in the text ({what(c)}): {here}"
    said = " ".join(filter(None, [cell(claimed(c)), meant(c) if meant(c) != "the same" else ""]))
    verdict = f"; {c.told}" if c.told else ""
    return f"{c.claim.row} claims {said} ({what(c)}, {c.claim.hardware}): {here}{verdict}"


# ---- What the words mean.


def explained(found: Sequence[Comparison], machine: str) -> Iterator[str]:
    """What the words of the table mean, a sentence or two for each of them that it has."""
    yield f"What the texts say about their hardware, beside what was found here on {machine}."
    if any(claimed(c) == NO_FIGURE for c in found):
        yield "No figure: the text describes the technique, but gives no figure for it."
    yield from _of_verdicts([c for c in found if c.verdict])
    yield from _of_intervals(found)
    yield from _of_ways(found)


def _of_verdicts(judged: Sequence[Comparison]) -> Iterator[str]:
    if judged:
        yield (
            "Verdict: it agrees if the whole interval is as the text says, and disagrees if nothing of the interval "
            "is. Else it can't tell, as where there is no interval."
        )
    if any(c.claim.value is None for c in judged):
        yield f"A text without a figure says that the ratio lies beyond 1, here by more than {SAME:.0%}."
    if within := sorted({c.claim.within for c in judged if c.claim.value is not None}):
        shares = " or ".join(f"{share:.3g}%" for share in (100 * one for one in within))
        yield f"A figure that is off the text's figure by no more than {shares} of it, as the claim has it, is as good."
    if any(is_of_other_hardware(c.claim, c.metric) for c in judged):
        yield "A time or a rate is of the text's own hardware, so nothing that is measured here can tell."


def _of_intervals(found: Sequence[Comparison]) -> Iterator[str]:
    overs = {one.figure.over for c in found for one in c.found}
    if overs & {"processes", "recordings", "calls", "samples"}:
        yield "Interval: at 95%; of several cases from the lowest bound to the highest."
    if "processes" in overs:
        yield "Over processes: by Student's t, over what each fresh process found."
    if "samples" in overs:
        yield (
            "Over one process: the interval holds the noise within that process alone, and another process may lie "
            "outside of it. A run with --repeat 3 or more has intervals over processes."
        )
    if "recordings" in overs:
        yield "Over recordings: by Student's t, over what each recording of a tool found, in a process of its own."
    if "calls" in overs:
        yield "Over one recording: by Student's t, over the calls that a tool recorded in one process."


def _of_ways(found: Sequence[Comparison]) -> Iterator[str]:
    ways = [how(c) for c in found]
    if BY_COUNT in ways:
        yield (
            "By count: computed from the bytes that the op and its variants declare. No measurement is in it, so it "
            "can't tell."
        )
    if BY_TRACE in ways:
        yield "By a trace: the time of kernels over the time in which any kernel ran, as torch's profiler saw them."
    if any(way.startswith(BY_COUNTERS) for way in ways):
        yield (
            "By counters: from what hardware counters saw, which is one reading without an interval; a ratio of bytes "
            "is of the bytes that went through the device's memory. Where the declared bytes give a ratio that is more "
            f"than {LIMIT:.0%} away from it, that ratio stands there too."
        )
    if any(way.startswith(BY_COUNTERS) and way != BY_COUNTERS for way in ways):
        yield "By counters in some cases: the other cases have no counters, and no part in the figure."
