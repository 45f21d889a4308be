"""`run`, `load` and `compare`: scenarios measured as the command line does it, stored runs, and their differences."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import devices, paths, runner, scenario, store
from harness.api.advised import advised
from harness.api.progress import Shown
from harness.differences import Compared, compare_all
from harness.errors import UsageError, nearest
from harness.model import Difference, Run
from harness.ops import Catalogue, known_cases
from harness.report import columns_units, comparison
from harness.report.apart import write_apart

if TYPE_CHECKING:
    import pandas as pd

Named = str | Sequence[str]
Folder = str | os.PathLike[str]


class StoredRun:
    """A run and the folder that it lies in.

    run: the records, in SI units. folder: where they are stored.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.folder = folder

    def frame(self) -> pd.DataFrame:
        """A row for each case, with the columns of results.csv; `attrs["units"]` has the unit of each figure.

        Times are in seconds, bandwidths in bytes a second, bytes in bytes; shares are fractions: 1 is 100%. NaN stands
        for what isn't known: a case without a time has a `status` and an `error`.
        """
        from harness.report.frame import frame

        table = frame(self.run).copy()
        table.attrs["units"] = columns_units.units(table.columns)
        return table

    def __repr__(self) -> str:
        cases, done = len(self.run.results), sum(result.time is not None for result in self.run.results)
        return f"{self.folder}: {done} of {cases} cases timed, {self.run.header.machine.name}"

    def _repr_html_(self) -> str:
        from harness.api import html

        return html.of_run(self.run)


class Differences:
    """Runs beside a baseline, case by case.

    notes: what differs between the runs besides times, such as the machine; one sentence for each difference.
    """

    def __init__(self, made: Compared) -> None:
        self._made = made
        self.notes = made.notes

    def frame(self) -> pd.DataFrame:
        """A row for each case and run; `attrs["units"]` has the unit of each figure.

        `reference` and `time` are in seconds. `ratio` is the baseline's time over the run's: above 1 the run is faster;
        `low` and `high` are its 95% interval. `verdict` is 'faster', 'slower', '~' or 'missing'.
        """
        table = comparison.frame(self._made)
        table.attrs["units"] = dict(comparison.UNITS)
        return table

    @property
    def geomean(self) -> float | dict[str, float | None] | None:
        """The geometric mean of the ratios, over cases with a time in both runs: above 1 the run is faster.

        Of several runs a dict by name. None where no case has a time in both.
        """
        means = {name: self._made.geomean(name) for name in self._made.names}
        return next(iter(means.values())) if len(means) == 1 else means

    def slower(self, by: float = 0.0) -> list[Difference]:
        """The cases that take longer than in the baseline by more than the share `by`, such as 0.01, beyond noise."""
        return [each for _, each in self._made.slower(by)]

    def __repr__(self) -> str:
        found = [f"{name}: {mean:.3f}x" for name in self._made.names if (mean := self._made.geomean(name))]
        return f"against {self._made.baseline}: {', '.join(found) or 'no case has a time in both'}"

    def _repr_html_(self) -> str:
        from harness.api import html

        return html.of_comparison(self._made)


@advised
def run(  # noqa: PLR0913 - the options of the command
    scenarios: Named | Folder,
    *,
    only: Named = (),
    variants: Named = (),
    dtypes: Named = (),
    tags: Named = (),
    ops: Folder | Sequence[Folder] = (),
    device: str | None = None,
    output: Folder | None = None,
    repeat: int = 1,
    resume: bool = False,
    precision: float | None = None,
    max_time: float | None = None,
    fresh_ceilings: bool = False,
) -> StoredRun:
    """Measure scenarios in processes of their own, as `harness run` does, and write the run's folder with its report.

    scenarios: bundled names, YAML files, or folders of them. only: globs on ids of cases. ops: plug-in files. output:
    the run's folder; a new one in reports/ unless told. repeat: fresh processes for each case. resume: go on with the
    run in `output`. precision: relative width of the 95% interval at which sampling ends. max_time: seconds of sampling
    a case at most. A case that fails is a row with its status, not an error.

    Raises UsageError and MachineError as the command does, and KeyboardInterrupt; what was measured by then is stored.
    """
    plugins = tuple(map(Path, listed(ops)))
    catalogue = Catalogue(plugins)
    definitions = scenario.load(scenario.find([str(each) for each in listed(scenarios)], catalogue), catalogue)
    kind = devices.choose(device)
    selection = scenario.Selection(
        device=kind,
        only=listed(only),
        tags=listed(tags),
        variants=listed(variants),
        dtypes=listed(dtypes),
        precision=precision,
        max_time=max_time,
    )
    if resume and output is None:
        raise UsageError("resume=True needs output=", "name the folder of the run to go on with")
    plan = scenario.plan(definitions, catalogue, selection)
    return measured(plan, output, kind, plugins=plugins, repeat=repeat, resume=resume, fresh=fresh_ceilings)


def measured(
    plan: scenario.Plan, output: Folder | None, kind: str, *, report: bool = True, **request: Any
) -> StoredRun:
    """Carry out a plan. output: the run's folder; a new one in reports/ if None. report: whether its report is written.

    request: other arguments of `runner.run`.
    """
    name = plan.scenarios[0].name if len(plan.scenarios) == 1 else "run"
    folder = paths.new_report(f"{name}-{kind}") if output is None else Path(output)
    with Shown() as told:
        if plan.left_out:
            told.note(plan.left_out)
        found = runner.run(
            plan, name=name, folder=folder, device=kind, command=(sys.argv[0], "run"), observer=told, **request
        )
        if report:
            told.note("writing the report")
        if report and (code := write_apart(folder, request.get("plugins", ()))):
            told.note(f"the report wasn't written (exit code {code}); results are in {folder}")
    return StoredRun(found, folder)


@advised
def load(folder: Folder) -> StoredRun:
    """A stored run. folder: of the run; '@last' is the run in reports/ that began last. Raises UsageError for none."""
    place = store.place(str(folder))
    return StoredRun(known_cases.load(place), place)


@advised
def compare(*runs: StoredRun | Folder, baseline: str | None = None) -> Differences:
    """Compare runs, or folders of runs, with the first one, or with the one whose name `baseline` is.

    A run's name is the last part of its folder, where no two are alike. Raises UsageError for fewer than two runs.
    """
    if len(runs) < 2:
        raise UsageError(f"{len(runs)} runs can't be compared", "give two or more: hb.compare(old, new)")
    loaded = [each if isinstance(each, StoredRun) else load(each) for each in runs]
    names = dict(zip(store.by_name([each.folder for each in loaded]), (each.run for each in loaded), strict=True))
    first = next(iter(names)) if baseline is None else baseline
    if first not in names:
        raise UsageError(f"no run is named '{first}'", nearest(first, names))
    return Differences(compare_all(first, names))


def listed(value: Any) -> tuple[str, ...]:
    """One name, or several, as a tuple."""
    return (os.fspath(value),) if isinstance(value, str | os.PathLike) else tuple(value)
