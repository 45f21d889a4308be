"""Why a technique loses here: the sentences of reports/h200/why.yaml, with the figures that committed runs have.

    python scripts/why.py            prints the sentences

The file has, by row and by 'op/variant', the variant that it is slower than (`over`), a run and a case, and `why`, a
text with marks in braces for figures of that case:

    {FIGURE}                 a metric, or a counter of the case's kernels, such as instructions
    {FIGURE of VARIANT}      the same of another variant
    {FIGURE over VARIANT}    the ratio to another variant
    {... at CASE}            of another case of the run
    {... in RUN}             of the same case of another run

Counts and bytes are of a call, over all its kernels. Shares are weighted by the kernels' times. Besides there are
`bytes` (read from and written to memory), `cycles` (of a multiprocessor), `kernel` (the name of the longest one), and
`FIGURE/SYMBOL`, a figure over a size.

Where counters are missing that would tell, `missing` has the commands that measure them, and `predicted` what they are
expected to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from committed import RUNS, read_yaml

from harness import units
from harness.metrics import METRICS
from harness.model import COUNTERS, KernelProfile
from harness.model.counters import PIPE, STALL
from harness.ops import known_cases
from harness.report.frame import Line, lines
from harness.report.kernel_names import kernel_name

FILE = RUNS / "why.yaml"
MARK = re.compile(
    r"\{(?P<figure>\w+(?:/\w+)?)(?: (?P<how>of|over) (?P<other>\w+))?(?: at (?P<case>[^\s{}]+))?(?: in (?P<run>\w+))?\}"
)
_OF_KERNELS = {"bytes": "B", "cycles": "", "kernel": ""}
"""Figures that are made of counters, with their units."""
_ADDED = ("B", "")
"""Units of counters whose sum over kernels means something, but for the counters in _OF_A_LAUNCH."""
_OF_A_LAUNCH = ("grid", "block", "registers", "shared_bytes", "local_bytes", "waves", "load_bytes_a_sector",
                "store_bytes_a_sector")  # fmt: skip
"""Counters that have no sum: the longest kernel's stands for all, as its `blocks_by_...` do."""
_NAME = 60
"""Characters of a kernel's name."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the variant `variant` of `op` is slower than `over` in a case of a run.

    text: with its figures. missing: commands that measure the counters that would tell more. predicted: what they are
    expected to say.
    """

    row: str
    op: str
    variant: str
    over: str
    run: str
    case: str
    text: str
    missing: tuple[str, ...] = ()
    predicted: str = ""


def reasons() -> Iterator[Reason]:
    """All reasons of the file. Raises SystemExit for a mark whose figure no committed run has."""
    for row, entries in read_yaml(FILE).items():
        for name, entry in entries.items():
            yield _reason(row, name, entry)


def _reason(row: str, name: str, entry: Mapping[str, Any]) -> Reason:
    op, _, variant = name.partition("/")
    text = MARK.sub(partial(_figure, entry["run"], entry["case"]), " ".join(entry["why"].split()))
    if "{" in text:
        raise SystemExit(f"{FILE.name}: {row} {name}: no figure is meant by '{text[text.index('{') :][:40]}'")
    missing, predicted = tuple(entry.get("missing", ())), " ".join(entry.get("predicted", "").split())
    return Reason(row, op, variant, entry["over"], entry["run"], entry["case"], text, missing, predicted)


@lru_cache
def _lines(run: str) -> tuple[Line, ...]:
    return lines(known_cases.load(RUNS / run))


@lru_cache
def _named(run: str) -> dict[str, Line]:
    """The cases of a run by id, and by whole id."""
    return {key: one for one in _lines(run) for key in (one.case.id, one.case.whole_id)}


def line(run: str, case: str, variant: str = "") -> Line:
    """A case of a committed run, or another variant of it. Raises SystemExit unless there is exactly one."""
    if variant:
        op, _, *rest = case.split("/")
        case = "/".join((op, variant, *rest))
    if exact := _named(run).get(case):
        return exact
    found = {one.case.id: one for one in _lines(run) if one.case.matches(case)}
    if len(found) != 1:
        raise SystemExit(f"{FILE.name}: the run {run} has {len(found)} cases like {case}; one is needed")
    return next(iter(found.values()))


def _figure(run: str, case: str, mark: re.Match[str]) -> str:
    run, case = mark["run"] or run, mark["case"] or case
    name, other = mark["figure"], mark["other"] or ""
    if mark["how"] == "over":
        over = value(line(run, case, other), name)
        return units.ratio(_number(value(line(run, case), name)) / _number(over))
    found = value(line(run, case, other), name)
    if isinstance(found, str):
        return f"`{found}`"
    name = name.partition("/")[0]
    if not _is_counted(name):
        return METRICS[name].written(found)
    unit = _OF_KERNELS[name] if name in _OF_KERNELS else COUNTERS[name].unit if name in COUNTERS else "share"
    return {"B": units.size, "share": units.percent}.get(unit, _count)(found)


def _is_counted(name: str) -> bool:
    """Whether it is a figure of kernels, by counters. Metrics have some of their names, for what ops declare."""
    return name in _OF_KERNELS or name.startswith((STALL, PIPE)) or (name in COUNTERS and name != "time")


def _count(number: float) -> str:
    scale, prefix = units.prefixed(number)
    return f"{units.significant(number / scale)} {prefix}".rstrip()


def _number(found: str | float) -> float:
    if isinstance(found, str):
        raise SystemExit(f"{FILE.name}: '{found}' is no number that could be divided")
    return found


def value(of: Line, name: str) -> str | float:
    """A figure of a case, in SI units. Raises SystemExit where the run doesn't tell it."""
    name, _, symbol = name.partition("/")
    kernels = [kernel for each in of.attachments if each.tool == "ncu" for kernel in each.kernels]
    if name in METRICS and not _is_counted(name):
        found: str | float | None = of.subject.facts.get(name, of.values.get(name))
    else:
        found = _of_kernels(kernels, name) if kernels else None
    if found is None:
        raise SystemExit(f"{FILE.name}: the run doesn't tell {name} of {of.case.id}")
    return _number(found) / of.case.symbols[symbol] if symbol else found


def _of_kernels(kernels: list[KernelProfile], name: str) -> str | float | None:
    """A counter of all kernels of a call; None where some kernel lacks it."""
    known = [(kernel.launches, dict(kernel.values)) for kernel in kernels]
    seconds = [launches * own["time"] for launches, own in known]
    longest = seconds.index(max(seconds))
    if name == "kernel":
        return kernel_name(kernels[longest].name, _NAME)
    for _, own in known:
        own["bytes"] = own["read_bytes"] + own["written_bytes"]
        own["cycles"] = own["time"] * own["clock"]
    if any(name not in own for _, own in known):
        return None
    if name in _OF_A_LAUNCH or name.startswith("blocks_by_"):
        return known[longest][1][name]
    if name in _OF_KERNELS or (name in COUNTERS and COUNTERS[name].unit in _ADDED):
        return sum(launches * own[name] for launches, own in known)
    return sum(time * own[name] for time, (_, own) in zip(seconds, known, strict=True)) / sum(seconds)


def main() -> None:
    """Print every reason, with what is missing."""
    for reason in reasons():
        print(f"{reason.row} {reason.op}/{reason.variant} over {reason.over} ({reason.run}): {reason.text}")
        for command in reason.missing:
            print(f"  missing: {command}")
        if reason.predicted:
            print(f"  predicted: {reason.predicted}")


if __name__ == "__main__":
    main()
