"""Definitions -> the jobs of a run: cases filtered, put in order, each once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from harness.errors import InputError, Problem, UsageError, nearest
from harness.model import LONGEST_CASE, Case, Job, Scenario, Timing
from harness.ops import Op
from harness.ops.known_cases import recognised, translated
from harness.scenario.definition import Definition

_Candidate = tuple[Definition, Case]

_MOST_OPS = 3
"""Ops whose variants are named where they can't run; of more, only their number is told."""
_WILD = frozenset("*?[")
"""What makes a glob of a name."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What the command line asks for: a device, filters (an empty one keeps everything), timing if it sets any.

    only: globs on case ids. A case is kept if any glob matches, and if its scenario has any of the tags.
    """

    device: str
    only: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    precision: float | None = None
    max_time: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, in order. A case that several scenarios ask for is one job.

    ops: the jobs' ops, by name. left_out: the variants that were asked for and don't run on the device, and why, in
    one line; empty if there is none.
    """

    scenarios: tuple[Scenario, ...]
    jobs: tuple[Job, ...]
    ops: Mapping[str, Op] = field(default_factory=dict)
    left_out: str = ""


@dataclass(slots=True)
class _Filter:
    """One of the filters: keeps a candidate if any of its values is among the chosen ones."""

    flag: str
    chosen: tuple[str, ...]
    values: Callable[[Definition, Case], Sequence[str]]
    # Apart, since hundreds of cases may be named, and thousands are asked about.
    _names: frozenset[str] = field(init=False)
    _globs: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._globs = tuple(choice for choice in self.chosen if not _WILD.isdisjoint(choice))
        self._names = frozenset(self.chosen).difference(self._globs)

    def keeps(self, candidate: _Candidate) -> bool:
        if not self.chosen:
            return True
        values = (*self.values(*candidate), *((candidate[1].whole_id,) if self.flag == "--only" else ()))
        return not self._names.isdisjoint(values) or any(fnmatchcase(v, glob) for v in values for glob in self._globs)


def plan(definitions: Sequence[Definition], catalogue: Mapping[str, Op], selection: Selection) -> Plan:
    """The jobs for one device: by scenario, dtype, shape, then variant with the baseline first.

    Variants that don't run on the device are left out, and named in the plan. A case that several scenarios ask for is
    timed once, as the strictest of them asks. Raises InputError for filters with unknown names, and UsageError if
    nothing is left to run.
    """
    if not definitions:
        raise UsageError("nothing to run: no scenario was given", "'harness list' shows the bundled ones")
    # An id that was written down before the op learned a choice is today's.
    selection = replace(selection, only=tuple(translated(glob, catalogue) for glob in selection.only))
    candidates = [(d, recognised(case, catalogue)) for d in definitions for case in d.cases(selection.device)]
    problems = [*_unknown(definitions, catalogue, selection), *_unmatched(candidates, catalogue, selection)]
    if problems:
        raise InputError(problems)
    left_out = _needing_another_device(candidates, catalogue, selection)
    chosen = _filtered(candidates, catalogue, selection)
    jobs = _jobs(chosen, selection)
    cases = {d.name: tuple(case.id for owner, case in chosen if owner is d) for d in definitions}
    scenarios = (_scenario(d, catalogue[d.op], cases[d.name]) for d in definitions if cases[d.name])
    ops = {job.case.op: catalogue[job.case.op] for job in jobs}
    return Plan(tuple(scenarios), jobs, ops, left_out and f"left out on {selection.device}: {left_out}")


def _filters(catalogue: Mapping[str, Op], selection: Selection) -> list[_Filter]:
    return [
        _Filter("--device", (selection.device,), lambda _, case: _devices(catalogue, case, selection.device)),
        _Filter("--tag", selection.tags, lambda definition, _: definition.tags),
        _Filter("--variants", selection.variants, lambda _, case: (case.variant,)),
        _Filter("--dtype", selection.dtypes, lambda _, case: (case.dtype,)),
        _Filter("--only", selection.only, lambda _, case: (case.id,)),
    ]


def _devices(catalogue: Mapping[str, Op], case: Case, wanted: str) -> tuple[str, ...]:
    """The device that is wanted if the variant runs on it, else the devices that it does run on."""
    variant = catalogue[case.op].variants[case.variant]
    return (wanted,) if variant.runs_on(wanted) else variant.devices


def _unknown(definitions: Sequence[Definition], catalogue: Mapping[str, Op], selection: Selection) -> Iterator[Problem]:
    """A problem for each value of a flag that is wrong: an unknown variant, dtype or tag, or a time out of range."""
    ops = [catalogue[definition.op] for definition in definitions]
    known: list[tuple[str, str, tuple[str, ...], set[str]]] = [
        ("--tag", "tag", selection.tags, {tag for d in definitions for tag in d.tags}),
        ("--variants", "variant", selection.variants, {name for op in ops for name in op.variants}),
        ("--dtype", "dtype", selection.dtypes, {dtype for op in ops for dtype in op.dtypes}),
    ]
    for flag, what, chosen, allowed in known:
        for name in chosen:
            if name not in allowed:
                yield Problem(flag, f"no {what} of these scenarios is named '{name}'", nearest(name, allowed))
    if selection.precision is not None and not 0 < selection.precision < 1:
        yield Problem("--precision", f"must be between 0 and 1, found {selection.precision:g}")
    if selection.max_time is not None and not 0 < selection.max_time <= LONGEST_CASE:
        may = f"{LONGEST_CASE:g} seconds or less" if selection.max_time > LONGEST_CASE else "more than 0 seconds"
        yield Problem("--max-time", f"must be {may}, found {selection.max_time:g}")


def _unmatched(
    candidates: Sequence[_Candidate], catalogue: Mapping[str, Op], selection: Selection
) -> Iterator[Problem]:
    """Globs of --only that match no case on the device."""
    device = _filters(catalogue, selection)[0]
    here = {case.id: case for definition, case in candidates if device.keeps((definition, case))}
    ids = list(here)
    named = {*here, *(case.whole_id for case in here.values())}
    for pattern in selection.only:
        if ids and pattern not in named and not any(case.matches(pattern) for case in here.values()):
            elsewhere = [case for _, case in candidates if case.matches(pattern)]
            found = f", only cases on another device: {_needs(elsewhere, catalogue)}" if elsewhere else ""
            near = ", ".join(difflib.get_close_matches(pattern, ids, n=3, cutoff=0))
            yield Problem(
                "--only", f"'{pattern}' matches no case on {selection.device}{found}", f"cases near it: {near}"
            )


def _needing_another_device(candidates: Sequence[_Candidate], catalogue: Mapping[str, Op], selection: Selection) -> str:
    """The variants that all filters but the device's keep, and what they need; empty if there is none.

    Raises UsageError if these are all that was asked for.
    """
    device, *others = _filters(catalogue, selection)
    asked = [candidate for candidate in candidates if all(filter_.keeps(candidate) for filter_ in others)]
    dropped = [candidate for candidate in asked if not device.keeps(candidate)]
    told = _needs((case for _, case in dropped), catalogue)
    if asked and len(dropped) == len(asked):
        advice = "name other variants, or run it where such a device is; 'harness env' says what this machine has"
        raise UsageError(f"nothing to run on {selection.device}: {told}", advice)
    return told


def _needs(cases: Iterable[Case], catalogue: Mapping[str, Op]) -> str:
    """Variants and the devices that they need, in one line: 'prelu/naive, tuned (need cuda)'."""
    by_devices: dict[str, dict[str, dict[str, None]]] = {}
    for case in cases:
        devices = " or ".join(catalogue[case.op].variants[case.variant].devices) or "a device that none has"
        by_devices.setdefault(devices, {}).setdefault(case.op, {})[case.variant] = None
    return "; ".join(f"{_grouped(ops)} {devices})" for devices, ops in by_devices.items())


def _grouped(ops: Mapping[str, Mapping[str, None]]) -> str:
    count = sum(map(len, ops.values()))
    verb = "needs" if count == 1 else "need"
    named = [f"{op}/{', '.join(variants)}" for op, variants in ops.items()]
    if len(named) <= _MOST_OPS:
        return f"{'; '.join(named)} ({verb}"
    return f"{count} variants of {len(ops)} ops, such as {named[0]} ({verb}"


def _filtered(candidates: list[_Candidate], catalogue: Mapping[str, Op], selection: Selection) -> list[_Candidate]:
    """What all filters keep. Raises UsageError that names the filter after which nothing is left."""
    for filter_ in _filters(catalogue, selection):
        kept = [candidate for candidate in candidates if filter_.keeps(candidate)]
        if not kept:
            asked = " ".join((filter_.flag, *filter_.chosen))
            left = sorted({value for candidate in candidates for value in filter_.values(*candidate)})
            raise UsageError(
                f"nothing to run: {asked} keeps none of the {len(candidates)} cases that are left",
                f"these cases have {_some(left)}" if left else "these cases have none",
            )
        candidates = kept
    return candidates


def _jobs(chosen: Iterable[_Candidate], selection: Selection) -> tuple[Job, ...]:
    """One job a case, with the strictest timing of the scenarios that ask for it."""
    jobs: dict[str, Job] = {}
    for definition, case in chosen:
        timing = _timing(definition, selection)
        if case.id in jobs:
            timing = _stricter(jobs[case.id].timing, timing)
        jobs[case.id] = Job(case, timing)
    return tuple(jobs.values())


def _stricter(one: Timing, other: Timing) -> Timing:
    """The narrower precision, and the longer time to reach it, so that both scenarios get what they ask for."""
    return Timing(
        precision=min(one.precision, other.precision),
        max_time=max(one.max_time, other.max_time),
        timeout=max(one.timeout, other.timeout),
    )


def _timing(definition: Definition, selection: Selection) -> Timing:
    timing = definition.timing
    if selection.precision is not None:
        timing = replace(timing, precision=selection.precision)
    if selection.max_time is not None:
        timing = replace(timing, max_time=selection.max_time)
    return timing


def _scenario(definition: Definition, op: Op, cases: tuple[str, ...]) -> Scenario:
    return Scenario(
        name=definition.name,
        title=definition.title,
        op=definition.op,
        cases=cases,
        shows=definition.shows,
        source=definition.source,
        rows=definition.rows,
        baseline=definition.baseline,
        tags=definition.tags,
        expect=definition.expect,
        claims=definition.claims,
        curve=definition.curve,
        plot=definition.plot,
        roles=tuple((name, variant.role) for name, variant in op.variants.items() if name in definition.variants),
    )


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
