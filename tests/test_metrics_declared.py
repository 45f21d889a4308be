"""A metric is declared once, stands where it is asked to, and a mistake in its declaration says where it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness import metrics, units
from harness.errors import UsageError
from harness.metrics import METRICS
from tests.one_test import one_test


@pytest.fixture
def own() -> Iterator[None]:
    """What is added to the list is gone after the test."""
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


def test_a_metric_that_is_there_already_stays(own: None) -> None:
    """A module may be loaded twice: by its name, and as a file."""
    again = replace(METRICS["time"], value=lambda s: s.time, unit=replace(units.SECONDS))
    order = list(METRICS)
    assert metrics.add(again) is METRICS["time"]
    assert list(METRICS) == order


def test_a_name_has_one_meaning_and_an_error_says_where(own: None) -> None:
    first = metrics.fact("mine", "mine", units.SHARE, "a share")
    line = sys._getframe().f_lineno - 1
    with pytest.raises(UsageError) as caught:
        metrics.add(replace(first, hint="another", unit=units.SECONDS))
    here = re.escape(__file__)
    assert re.match(rf"{here}:{line + 3}: .*'mine' already, 'mine', .*unit, hint differ", caught.value.message)
    assert caught.value.message.endswith(f"({__file__}:{line})")
    with pytest.raises(UsageError, match=r"its title differs \(.*metrics\.py:\d+\)"):
        metrics.add(replace(METRICS["time"], title="duration"))


MINE = metrics.Metric("mine", "mine", units.SHARE, lambda _: None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", 3), ("title", "\udc80"), ("keep", "3"), ("keep", True), ("of_limits", 1), ("unit", "s"),
        ("better", "up"), ("relative", "better"), ("value", None), ("shown", 3), ("attached", 3),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_refused_where_it_is_declared(own: None, field: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        metrics.add(replace(MINE, **{field: value}))
    line = sys._getframe().f_lineno - 1
    assert caught.value.message.startswith(f"{__file__}:{line}: {field} of metric 'mine' is ")
    assert "mine" not in METRICS


def test_what_is_no_metric_is_refused(own: None) -> None:
    with pytest.raises(UsageError, match="'mine' isn't a metric"):
        metrics.add("mine")
    with pytest.raises(UsageError, match="after is 3, which isn't text"):
        metrics.add(MINE, after=3)
    assert metrics.add(replace(MINE, better="higher", relative="world", attached=None)).name == "mine"


def test_a_metric_that_variants_or_tools_tell_has_a_column_of_its_title(own: None) -> None:
    told = metrics.fact("told", "told", units.SHARE, "a share")
    seen = metrics.found("seen", "seen", units.SHARE, "a share", "lower", lambda *_: None)
    assert [(one.head, one.keep, one.reported, one.by_trace) for one in (told, seen)] == [
        ("told", 3, True, False), ("seen", 3, True, False),
    ]  # fmt: skip
    assert metrics.fact("other", "other", units.SHARE, "a share", head="", keep=5).head == ""
    assert (METRICS["other"].keep, metrics.named("never").keep) == (5, 3)
    assert metrics.found("traced", "traced", units.SHARE, "", "", lambda *_: None, by_trace=True).by_trace


def test_which_metrics_depend_on_the_machine_as_much_as_on_the_code():
    assert {name for name in BUNDLED if METRICS[name].is_of_hardware} == {
        "time", "low", "high", "call_time", "bandwidth", "moved_bandwidth", "flops", "items", "ideal_items",
        "ceiling_bandwidth", "ceiling_flops",
    }  # fmt: skip
    assert not replace(METRICS["time"], relative="world").is_of_hardware


def test_a_metric_stands_where_it_belongs(own: None) -> None:
    metrics.fact("mine", "mine", units.SHARE, "a share", after="items")
    names = list(METRICS)
    assert names[names.index("items") + 1] == "mine"
    assert names[-1] != "mine"
    with pytest.raises(UsageError, match="'other' can't stand after 'itms'") as caught:
        metrics.fact("other", "other", units.SHARE, "a share", after="itms")
    assert caught.value.advice == "did you mean 'items'?"


def test_noise_and_the_range_of_processes_are_shares_of_the_time():
    def told(name: str, **fields: object) -> float | None:
        return METRICS[name].value(SimpleNamespace(**fields))

    assert told("noise", interval=(9.0, 12.0), time=10.0) == 0.3
    assert told("noise", interval=None, time=10.0) is None
    assert told("noise", interval=(0.0, 0.0), time=0.0) is None
    assert told("process_range", time=1.0, medians=(1.0, 1.5)) == 0.4
    assert told("process_range", time=1.0, medians=(1.0,)) is None
    assert told("process_range", time=None, medians=(1.0, 1.5)) is None
    assert (told("low", interval=(9.0, 12.0)), told("high", interval=(9.0, 12.0))) == (9.0, 12.0)


def test_from_which_shares_of_the_ceiling_on_a_time_is_doubted_and_is_none():
    """Limits are known to 2%. No error of theirs makes a fifth."""
    assert (metrics.ABOVE_CEILING, metrics.IMPOSSIBLE) == (1.02, 1.2)


def test_a_metric_that_says_no_more_is_in_no_column_and_no_plot():
    plain = metrics.Metric("mine", "mine", units.PLAIN, lambda _: None)
    assert (plain.head, plain.keep, plain.figure, plain.sweep, plain.limit) == ("", 0, 0, 0, "")
    assert not any(getattr(plain, flag) for flag in FLAGS)
    assert plain.shown(SimpleNamespace())
    assert plain.drawn(SimpleNamespace())


FLAGS = {
    "of_limits": ("of_peak", "of_ceiling"),
    "reported": ("kept_bytes", "compute_busy", "warp_instructions", "warp_accesses"),
    "by_count": ("traffic", "kept", "kept_bytes"),
    "by_trace": (),
    "by_counters": (
        "compute_busy", "arithmetic", "warp_instructions", "instructions", "warp_accesses", "accesses",
    ),
}  # fmt: skip
BUNDLED = metrics.COMMON | metrics.COUNTED


@one_test("flag", FLAGS)
def test_where_the_value_of_a_bundled_metric_comes_from(flag: str) -> None:
    assert {name for name in BUNDLED if getattr(METRICS[name], flag)} == {*FLAGS[flag]}


def by_rank(rank: str) -> list[set[str]]:
    """The bundled metrics of each rank, the lowest rank first."""
    ranks = {name: getattr(METRICS[name], rank) for name in BUNDLED if getattr(METRICS[name], rank)}
    return [{name for name, has in ranks.items() if has == one} for one in sorted({*ranks.values()})]


def test_which_columns_go_away_first_where_a_table_is_too_wide():
    *narrow, always = by_rank("keep")
    assert narrow == [
        {"intensity", "registers"},
        {"moved_bandwidth", "kept_bytes"},
        {"efficiency_low", "efficiency_high", "noise"},
        {"of_peak"},
        {"local_bytes"},
        {"items"},
        {"call_time", "flops", "efficiency"},
    ]
    assert {METRICS[name].keep for name in always} == {metrics.ALWAYS}
    assert always == {"time", "bandwidth", "of_ceiling", "speedup"}


def test_which_of_the_known_metrics_a_plot_and_a_table_of_sizes_show():
    assert by_rank("figure") == [{"time"}, {"items"}, {"bandwidth"}, {"flops"}]
    assert by_rank("sweep") == [{"time"}, {"items"}, {"bandwidth"}, {"of_ceiling"}]
