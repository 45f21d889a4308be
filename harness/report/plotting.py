"""The plots of a run, and what each shows. Nothing is drawn here: `plots` draws them, and the report links them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeVar

from harness.metrics import METRICS, Metric, named
from harness.model import Curve, Run, Scenario, Value
from harness.model.case import written
from harness.report import call_times, roofline_plot
from harness.report.frame import Line, Settings, by_scenario, frame, setting, settings_of
from harness.report.roles import roles, today
from harness.report.sweeps import asked, over_world, places

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Layout = Literal["bars", "lines", "curve", "variants", "world", "ranking", "calls", "roofline"]

FOLDER = "plots"
MOST_FIGURES = 10
"""The most figures of a run; call times and rooflines may have the same number beside them."""
MOST_SERIES = 8
"""The most series with a colour, a hatch and a marker of their own; with more, each bar has its name beside it."""
_MOST_VARIANTS = 9
"""The most variants in a figure as wide as the page."""
_MOST_BARS = 40
_MOST_SHAPES = 8
_MOST_RANKED = 40
_MOST_CALLS = 24
"""The most cases in a figure of device times and call times."""
_LEAST_SWEPT = 4
_LABEL_CHARACTERS = 52
"""What fits side by side under the axes of a figure half a page wide."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture of one scenario and dtype.

    rows: the plot's part of the table of `frame`, with two more columns: `series`, what a line or a colour stands for
    (usually the variant), and `setting`, the sizes and choices of a case. series: all series of the scenario, so that
    each looks the same in every plot. roles: the role of each variant of the op. metric: what is shown. labels: the
    text for each setting. swept: the place of each setting on the axis of lines and curves. axis: what varies along
    that axis, or what all settings have in common. curve: the scenario's curve. turn: the plot's number among the plots
    of the scenario and of its sort. multiprocessors: the machine's. roofs: what a roofline is drawn under.
    """

    scenario: str
    name: str
    title: str
    layout: Layout
    rows: pd.DataFrame
    metric: Metric
    labels: Mapping[str, str]
    axis: str
    series: tuple[str, ...]
    roles: Mapping[str, str]
    swept: Mapping[str, int]
    curve: Curve | None = None
    turn: int = 0
    multiprocessors: int = 0
    roofs: roofline_plot.Roofs | None = None

    @property
    def alt(self) -> str:
        """The text for readers who can't see the figure, without matplotlib's notation for formulas."""
        over = self.layout in ("curve", "variants", "world", "roofline")
        by = f"over {self.axis}" if over else "by variant and shape"
        title = re.sub(r"[${}]", "", self.title)  # 2^27 as one types it
        return f"{title}: {self.metric.title} {by}" if self.sort == "usual" else f"{title}, {by}"

    @property
    def sort(self) -> str:
        """Figures of one sort stand for each other where there are too many."""
        return self.layout if self.layout in ("calls", "roofline") else "usual"

    @property
    def path(self) -> str:
        """Path in the run's folder."""
        return f"{FOLDER}/{self.name}.svg"


def plan(run: Run, variants: tuple[str, ...] = ()) -> tuple[list[Plot], int]:
    """The plots of a run, and how many more there would be without a limit.

    variants: only these; all if empty. Where there are too many plots, each scenario keeps its first ones.
    """
    return _plan(run, variants)


@lru_cache(maxsize=1)
def _plan(run: Run, variants: tuple[str, ...]) -> tuple[list[Plot], int]:
    wanted: list[Plot] = []
    every = frame(run)
    for scenario, all_lines in by_scenario(run):
        own = every[every["scenario"] == scenario.name]
        lines = all_lines
        if variants:
            lines = [line for line in all_lines if line.case.variant in variants]
            own = own[own["variant"].isin(variants)]
        if not lines:
            continue
        count = run.header.machine.device.multiprocessors
        for plots in (
            _of_scenario(scenario, own, lines),
            _of_calls(scenario, own, lines),
            _rooflines(run, own, lines),
        ):
            wanted += [replace(plot, turn=turn, multiprocessors=count) for turn, plot in enumerate(plots)]
    ordered = sorted(wanted, key=lambda plot: plot.turn)
    sorts = {plot.sort for plot in wanted}
    kept = {plot.name for sort in sorts for plot in [p for p in ordered if p.sort == sort][:MOST_FIGURES]}
    return [plot for plot in wanted if plot.name in kept], len(wanted) - len(kept)


def of_group(run: Run, group: str) -> Plot | None:
    """The plot of one comparison, a row for each variant, the best one first; None where nothing is compared."""
    every = frame(run)
    for scenario, lines in by_scenario(run):
        own = [line for line in lines if line.case.group == group]
        metric = _metric(own, asked(scenario))
        if metric is None or len(own) < 2:
            continue
        table = every[(every["scenario"] == scenario.name) & every["case"].isin([line.case.id for line in own])]
        rows = _with_settings(table, own).assign(series=table["variant"])
        rows = rows.sort_values(metric.name, ascending=metric.better == "lower", kind="stable").head(_MOST_RANKED)
        plot = _plot(scenario, (own[0].case.dtype, own[0].case.cache), rows, settings_of(own))
        title = ", ".join(filter(None, [plot.title, *plot.labels]))
        role = today(scenario, [line.case.variant for line in lines])
        return replace(plot, name=f"{plot.name}-worst", title=title, layout="ranking", metric=metric, roles=role)
    return None


def _of_scenario(scenario: Scenario, table: pd.DataFrame, lines: list[Line]) -> Iterator[Plot]:
    """The plots of the metric that counts most, some for each dtype."""
    settings = settings_of(lines)
    table = _with_settings(table, lines)
    table = table.assign(series=_series(scenario.curve, table, settings))
    series = tuple(dict.fromkeys(table.sort_values("variant", key=_places(scenario), kind="stable")["series"]))
    # Choices of a curve become series, since its lines have no labels for settings as bars have.
    keys = [] if scenario.curve is None else ["choices"] if over_world(scenario.curve) else ["choices", "world"]
    apart = [key for key in keys if table[key].nunique() > 1]
    for kind, rows in table.groupby(["dtype", "cache", *apart], sort=False):
        cases = set(rows["case"])
        metric = _metric([line for line in lines if line.case.id in cases], asked(scenario))
        if metric is None:
            continue
        plot = replace(_plot(scenario, kind, rows, settings), metric=metric, series=series, curve=scenario.curve)
        plot = replace(plot, roles=today(scenario, table["variant"]))
        own = {name: settings[name] for name in plot.labels}
        yield from _numbered(list(_pages(plot, own, _varying(own))))


def _of_calls(scenario: Scenario, table: pd.DataFrame, lines: list[Line]) -> Iterator[Plot]:
    """The device time of each case beside the time of a call, where the latter matters and variants can be compared."""
    if not call_times.matter(scenario, lines):
        return
    for kind, rows in _with_settings(table, lines).groupby(["dtype", "cache"], sort=False):
        variants = rows["variant"].nunique()
        if variants == 1 or rows["call_time"].isna().all():
            continue
        plot = _plot(scenario, kind, rows, settings_of(lines))
        title = f"{plot.title}: device time and call time{_fixed(plot)}"
        plot = replace(plot, name=f"{plot.name}-calls", title=title, layout="calls", metric=METRICS["call_time"])
        parts = _parts(list(plot.labels), max(1, _MOST_CALLS // variants))
        yield from _numbered([replace(plot, rows=rows[rows["setting"].isin(part)]) for part in parts])


def _rooflines(run: Run, table: pd.DataFrame, lines: list[Line]) -> Iterator[Plot]:
    """A roofline for each dtype whose cases compute, if a peak of their operations was measured."""
    scenario = lines[0].scenario
    for kind, rows in _with_settings(table, lines).groupby(["dtype", "cache"], sort=False):
        timed = rows.dropna(subset=["flops", "intensity"])
        cases = set(timed["case"])
        over = roofline_plot.roofs([line.result.work_done for line in lines if line.case.id in cases], run.limits)
        if over is None:
            continue
        plot = _plot(scenario, kind, timed, settings_of(lines))
        title = f"{plot.title}: {roofline_plot.TITLE}{_fixed(plot)}"
        plot = replace(plot, name=f"{plot.name}-{roofline_plot.TITLE}", title=title, layout="roofline", roofs=over)
        role = today(scenario, table["variant"])
        yield replace(plot, metric=METRICS["flops"], axis=METRICS["intensity"].title, roles=role)


def _with_settings(table: pd.DataFrame, lines: list[Line]) -> pd.DataFrame:
    names = {line.case.id: setting(line.case) for line in lines}
    return table.assign(setting=table["case"].map(names))


def _plot(scenario: Scenario, kind: tuple[object, ...], rows: pd.DataFrame, settings: Settings) -> Plot:
    """A plot of the rows of a kind (dtype, cache, what else tells them apart), with what it is titled and labelled."""
    dtype, cache, *chosen = map(str, kind)
    words = [dtype] if cache == "cold" else [dtype, cache]
    title = " ".join([rows["op"].iloc[0], *words])
    own = {name: settings[name] for name in dict.fromkeys(rows["setting"])}
    varying = _varying(own)
    fixed = ", ".join(f"{s}={label(n)}" for s, n in next(iter(own.values())).items() if s not in varying)
    name, labels = file_name(scenario.name, *words, *chosen), _labels(own, varying)
    return Plot(scenario.name, name, title, "bars", rows, METRICS["time"], labels, fixed, (), {}, {})


def _fixed(plot: Plot) -> str:
    """What all settings have in common, for the end of a title."""
    return f", {plot.axis}" if plot.axis else ""


def file_name(scenario: str, *words: str) -> str:
    """The words as the name of a file, without characters that a shell or a file system may refuse.

    Scenarios 'a b' and 'a_b' have files of their own.
    """
    own = scenario if _plain_word(scenario) == scenario else f"{scenario}.{sha256(scenario.encode()).hexdigest()[:6]}"
    return _plain_word("-".join([own, *words]))


def _plain_word(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text)


def _metric(lines: Sequence[Line], wanted: str) -> Metric | None:
    """The metric wanted, else the one with the highest rank for figures that some line has and that may be drawn."""
    if wanted and any(line.values.get(wanted) is not None for line in lines):
        return named(wanted)
    ranked = sorted((m for m in METRICS.values() if m.figure), key=lambda metric: -metric.figure)
    known = (
        metric
        for metric in ranked
        if any(line.values.get(metric.name) is not None and metric.drawn(line.subject) for line in lines)
    )
    return next(known, None)


def _series(curve: Curve | None, table: pd.DataFrame, settings: Settings) -> pd.Series[str]:
    """The series of each row: its variant, or the size or choice for which the curve has a line, or both."""
    if curve is None or not curve.by:
        return table["variant"]
    values = table["setting"].map(lambda name: f"{curve.by}={label(settings[name][curve.by])}")
    return values if table["variant"].nunique() == 1 else table["variant"] + ", " + values


def _places(scenario: Scenario) -> Callable[[pd.Series[str]], pd.Series[int]]:
    """The place of each variant: the baseline's first, then the op's order, whatever a run measured first."""

    def places(variants: pd.Series[str]) -> pd.Series[int]:
        known = list(roles(scenario, variants))
        return variants.map(lambda name: -1 if name == scenario.baseline else known.index(name))

    return places


def _pages(plot: Plot, settings: Settings, varying: Sequence[str]) -> Iterator[Plot]:
    """The plot in parts that can be read, in the layout that suits it."""
    if plot.curve is not None:
        over = places(plot.curve, settings)
        alone = plot.curve.of_variants and len(set(over.values())) == len(over)
        layout: Layout = "curve" if not alone else "world" if over_world(plot.curve) else "variants"
        yield from _swept(plot, layout, plot.curve.label, over)
    elif len(settings) >= _LEAST_SWEPT and (over := _only_size(settings, varying)):
        yield from _swept(plot, "lines", varying[0], over)
    elif plot.rows["series"].nunique() > MOST_SERIES:
        yield from _rankings(plot)
    else:
        yield from _groups_of_bars(plot, list(settings))


def _only_size(settings: Settings, varying: Sequence[str]) -> dict[str, int]:
    """The value of the only size that varies, for each setting; nothing if several sizes or a choice vary."""
    if len(varying) != 1:
        return {}
    found = {name: values[varying[0]] for name, values in settings.items()}
    sizes = {name: size for name, size in found.items() if isinstance(size, int)}
    return sizes if len(sizes) == len(found) else {}


def _swept(plot: Plot, layout: Layout, axis: str, swept: Mapping[str, int]) -> Iterator[Plot]:
    title = plot.title + _fixed(plot)
    most = _MOST_VARIANTS if layout == "variants" else MOST_SERIES
    for part in _parts(list(dict.fromkeys(plot.rows["series"])), most):
        rows = plot.rows[plot.rows["series"].isin(part)]
        yield replace(plot, layout=layout, rows=rows, swept=swept, axis=axis, title=title, series=part)


def _rankings(plot: Plot) -> Iterator[Plot]:
    for name, own in plot.rows.groupby("setting", sort=False):
        ordered = own.sort_values(plot.metric.name, ascending=plot.metric.better == "lower", kind="stable")
        for part in _parts(range(len(ordered)), _MOST_RANKED):
            page = ordered.iloc[part[0] : part[-1] + 1]
            yield replace(plot, layout="ranking", rows=page, title=f"{plot.title}, {name}")


def _groups_of_bars(plot: Plot, settings: Sequence[str]) -> Iterator[Plot]:
    widest = max(len(line) for text in plot.labels.values() for line in _plain(text).split("\n"))
    bars = plot.rows["series"].nunique()
    most = min(_MOST_SHAPES, _MOST_BARS // bars, max(1, _LABEL_CHARACTERS // (widest + 1)))
    for part in _parts(settings, most):
        yield replace(plot, rows=plot.rows[plot.rows["setting"].isin(part)])


def _numbered(pages: list[Plot]) -> list[Plot]:
    if len(pages) == 1:
        return pages
    return [
        replace(page, name=f"{page.name}-{number}", title=f"{page.title} ({number} of {len(pages)})")
        for number, page in enumerate(pages, 1)
    ]


def _parts(items: Sequence[T], most: int) -> Iterator[tuple[T, ...]]:
    """`items` in as few parts of at most `most` as will do, of about the same length."""
    count = math.ceil(len(items) / most)
    for index in range(count):
        yield tuple(items[index * len(items) // count : (index + 1) * len(items) // count])


def _varying(settings: Settings) -> list[str]:
    """Names of the sizes and choices that aren't the same in all settings."""
    first = next(iter(settings.values()))
    return [name for name in first if len({values[name] for values in settings.values()}) > 1]


def _labels(settings: Settings, varying: Sequence[str]) -> dict[str, str]:
    """The sizes and choices in which settings differ, one on each line; empty for a single setting."""
    return {key: "\n".join(_line(name, values[name]) for name in varying) for key, values in settings.items()}


def _line(name: str, value: int | Value) -> str:
    """A size or choice as a label: 'C=64' for a number, 'nhwc' alone for a word, which says what it stands for."""
    return value if isinstance(value, str) else f"{name}={label(value)}"


def label(value: int | Value) -> str:
    """A size or the value of a choice in a few characters."""
    return size_label(value) if isinstance(value, int) else written(value)


def size_label(value: int) -> str:
    """A size in a few characters, powers of two as such (in matplotlib's notation for formulas)."""
    if value < 10_000:
        return str(value)
    if value.bit_count() == 1:
        return f"$2^{{{value.bit_length() - 1}}}$"
    scale, prefix = next(p for p in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= p[0])
    return f"{value / scale:.4g}{prefix}"


def _plain(text: str) -> str:
    return re.sub(r"[${}^]", "", text)
