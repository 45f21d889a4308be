"""The committed runs by case, for the scripts that write pages from them.

Every case is taken from the newest run that measured it, but for the runs in SKIPPED, COUNTED, BESIDE and
CHOSEN, and for runs FOR_ROWS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from harness.metrics import METRICS, Subject, subjects
from harness.model import Result, Run, by_group
from harness.ops import Catalogue, known_cases
from harness.ops.catalogue import LOADED
from harness.report.frame import lines
from harness.units import gigabytes, significant

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "reports" / "h200"
SKIPPED = ("ci", "trust", "trust_before", "trust_after", "trust_faults", "rows_in_halves")
"""Runs of other runs' cases: with few samples, with some of a case's variants only, or with other code."""
FOR_ROWS = "row_"
"""How a run's name begins that has only the cases of the rows' figures. It lacks variants that tables have."""
COUNTED = ("counters", "counters_rows", "counters_more", "counters_integers", "counters_norms", "row_counters")
"""Runs for hardware counters. A case is taken from them only if no other run has it. make_gains.py takes a case from
them also if no other run has as many of its steps."""
BESIDE = ("ladder_vit_autotune", "ladder_vit_seeds", "llm_kernels_peers", "models_peers", "scaling_copies")
"""Runs in one or two processes, beside a run in three. A case is taken from them only if no other run has it."""
CHOSEN = ("behind_again",)
"""Runs of cases that were chosen since torch was faster: to measure only these again would favour our kernels. They
answer no row, and a case is taken from them only if no other run has it."""
OURS = "tuned"
MODES = {"compile": "default", "compile_autotune": "autotune"}
"""The variants that are torch.compile, and what a table calls the mode of each."""
NOTHING, ABSENT = "-", "not run"


def read_yaml(file: Path) -> Any:
    """What a file of the repository in YAML holds."""
    # The loader in Python takes ten times as long as libyaml's, which not every build of PyYAML has.
    return yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@dataclass(frozen=True)
class Group:
    """The variants of one case, all of one run."""

    run: Run
    folder: str
    name: str
    results: dict[str, Result]

    def value(self, variant: str, metric: str, over: str = "") -> float | None:
        """A metric of a variant, in SI units; None where it isn't known."""
        if variant not in self.results:
            return None
        if METRICS[metric].relative == "world" or METRICS[metric].attached:
            return self._reported[variant].get(metric)
        known = self.against_limits if METRICS[metric].of_limits else self._alone
        return METRICS[metric].value(known[variant].against(self._alone.get(over)))

    @cached_property
    def _alone(self) -> dict[str, Subject]:
        return {name: Subject.of(result, None) for name, result in self.results.items()}

    @cached_property
    def against_limits(self) -> dict[str, Subject]:
        """The subjects with the ceiling. Most variants have the same one; to find it takes a search."""
        found = subjects(self.results.values(), self.run.limits)
        return {name: found[result.case.id] for name, result in self.results.items()}

    def written(self, variant: str, metric: str, over: str = "") -> str:
        """The same as text, without a unit where the metric is a time or a bandwidth."""
        if variant not in self.results or over not in {"", *self.results}:
            return ABSENT
        value = self.value(variant, metric, over)
        if value is None:
            return NOTHING
        if metric == "time":
            return significant(value * 1e6, 3) if value < 1e-4 else f"{value * 1e6:.0f}"
        return gigabytes(value) if metric == "bandwidth" else METRICS[metric].written(value)

    @cached_property
    def _reported(self) -> dict[str, Mapping[str, float | None]]:
        """Values as reports have them: also what tools found, and compared with the right case on one device."""
        values = {line.case.id: line.values for line in lines(self.run)}
        return {name: values[result.case.id] for name, result in self.results.items()}

    @cached_property
    def compiled(self) -> str:
        """The faster mode of torch.compile, as the name of its variant; the default mode if none has a time."""
        times = {name: time for name in MODES if (time := self.value(name, "time"))}
        return min(times, key=lambda name: times[name], default="compile")

    @property
    def mode(self) -> str:
        """What a table calls that mode; a dash if torch.compile has no time."""
        return MODES[self.compiled] if self.value(self.compiled, "time") else NOTHING

    @property
    def torch(self) -> str:
        return dict(self.run.header.machine.versions).get("torch", "?")


class Runs:
    """The committed runs."""

    def __init__(self, folder: Path = RUNS) -> None:
        Catalogue()  # loading the ops registers the metrics that they declare
        every = [file.parent.name for file in folder.glob("*/run.json")]
        names = [name for name in every if name not in SKIPPED and not name.startswith(FOR_ROWS)]
        loaded = sorted(
            ((known_cases.load(folder / name), name) for name in names),
            key=lambda loaded: (loaded[1] not in COUNTED + BESIDE + CHOSEN, loaded[0].header.started),
        )
        self.groups: dict[str, Group] = {}
        self._older: list[Group] = []
        for run, name in loaded:
            for group, results in by_group(run.results).items():
                variants = {result.case.variant: result for result in results}
                if OURS in variants or OURS not in getattr(self.groups.get(group), "results", ()):
                    self._older += [self.groups[group]] if group in self.groups else []
                    self.groups[group] = Group(run, name, group, variants)

    def newest_with(self, variant: str, group: Group) -> Group:
        """The newest measurement of the group's case that has the variant; the group itself where none has."""
        older = (one for one in reversed(self._older) if one.name == group.name and variant in one.results)
        return group if variant in group.results else next(older, group)

    @property
    def every(self) -> list[Group]:
        """Measurements of all cases, newer ones after older ones; without `tuned` only where none has it."""
        return [*self._older, *self.groups.values()]

    def group(self, op: str, dtype: str, setting: str) -> Group:
        """The newest measurement of a case; `setting` is its id after the dtype. Raises SystemExit if there is none."""
        if found := self.found(op, dtype, setting):
            return found
        raise SystemExit(f"no committed run has the case {op}/{dtype}/{setting}")

    def found(self, op: str, dtype: str, setting: str) -> Group | None:
        """The same; None if there is none."""
        case = known_cases.named(f"{op}/{OURS}/{dtype}/{setting}", LOADED)
        return self.groups.get(case.group if case else f"{op}/{dtype}/{setting}")

    @cached_property
    def _named(self) -> dict[str, list[tuple[tuple[str, str], Group, str]]]:
        """The case of each id, and of each whole id."""
        return {each: [one] for one in self._cases for each in one[0]}

    @cached_property
    def _of_ops(self) -> dict[str, list[tuple[tuple[str, str], Group, str]]]:
        """The cases of each op."""
        found: dict[str, list[tuple[tuple[str, str], Group, str]]] = {}
        for one in self._cases:
            found.setdefault(one[0][0].partition("/")[0], []).append(one)
        return found

    @cached_property
    def _cases(self) -> list[tuple[tuple[str, str], Group, str]]:
        """Every case: its id and its whole id, which take a while to put together, its group and its variant."""
        return [
            ((result.case.id, result.case.whole_id), group, variant)
            for group in self.groups.values()
            for variant, result in group.results.items()
        ]

    def figure(self, cases: str, metric: str, over: str = "") -> str:
        """A metric of all cases like the glob `cases`, of the newest run that has one of the variants in it.

        Raises SystemExit if no case is like it, or has the metric.
        """
        fits = re.compile(translate(cases)).match
        op = cases.partition("/")[0]
        values = [
            value
            for ids, group, variant in self._named.get(cases) or self._of_ops.get(op, self._cases)
            if any(map(fits, ids)) and (value := group.value(variant, metric, over))
        ]
        values = values or self._before(fits, metric, over)
        if not values:
            raise SystemExit(f"no committed run has {metric} of {cases}" + (f" over {over}" if over else ""))
        low, high = (METRICS[metric].written(bound) for bound in (min(values), max(values)))
        return low if low == high else f"{low} to {high}"

    def _before(self, fits: Callable[[str], object], metric: str, over: str) -> list[float]:
        """The metric of the newest older run that has it, for a newer run of the same case without this variant."""
        for group in reversed(self._older):
            for variant, result in group.results.items():
                if any(map(fits, (result.case.id, result.case.whole_id))) and (
                    value := group.value(variant, metric, over)
                ):
                    return [value]
        return []
