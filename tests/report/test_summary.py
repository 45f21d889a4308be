from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.model import Warning
from harness.report import overview
from harness.report.summary import Summary, summarise
from harness.report.text import as_text

SHAPE = (("N", 64), ("C", 128), ("H", 56))
PLACES = [("float32", SHAPE), ("float16", SHAPE)]


@pytest.fixture
def summary(measured: Callable[..., Any], make_run: Callable[..., Any]) -> Callable[..., Summary]:
    """The summary of a run with these shares of the ceiling by variant, in float32 and then in float16."""

    def make(*comparisons: dict[str, float], roles: tuple[tuple[str, str], ...] = (), **fields: object) -> Summary:
        pairs = zip(PLACES, comparisons, strict=False)
        cases = [measured(name, *at, share, **fields) for at, shares in pairs for name, share in shares.items()]
        return summarise(make_run(cases, roles=roles))

    return make


def test_ours_is_behind_where_a_rival_is_faster_by_more_than_a_percent(summary: Callable[..., Any]) -> None:
    found = summary({"eager": 0.5, "compile": 0.8, "tuned": 0.75}, {"eager": 0.5, "compile": 0.8, "tuned": 0.795})
    (behind,) = found.whole.behind
    assert (behind.group, behind.rival.case.variant) == ("prelu/float32/N64-C128-H56", "compile")
    assert behind.ratio.value == pytest.approx(0.75 / 0.8)
    # Each bound of a time is 0.04% off its median.
    assert (behind.ratio.low, behind.ratio.high) == pytest.approx((0.9375 / 1.0004 * 0.9996, 0.9375 * 1.0004 / 0.9996))
    assert len(found.whole.compared) == 2


def test_where_the_noise_is_wider_than_the_loss_ours_is_not_called_behind(
    measured: Callable[..., Any], make_run: Callable[..., Any]
) -> None:
    noisy = tuple(1e-6 * (1 + (i - 5) * 0.1) for i in range(11))
    slower = tuple(1.05 * sample for sample in noisy)
    run = make_run([measured("eager", *PLACES[0], samples=noisy), measured("tuned", *PLACES[0], samples=slower)])
    found = summarise(run)
    assert found.whole.behind == ()
    assert [standing.ratio.value for standing in found.whole.unsure] == [pytest.approx(1 / 1.05)]
    assert "In 1 of them the noise is too wide to tell." in overview.headline(found)[0]


def test_too_few_samples_for_an_interval_tell_nothing(summary: Callable[..., Any]) -> None:
    found = summary({"eager": 0.5, "tuned": 0.5}, samples=(1e-6, 1e-6))
    assert found.whole.compared[0].ratio.low is None
    assert found.whole.behind == found.whole.unsure == ()
    assert found.whole.gains[0].ratio.high is None


def test_gains_are_geometric_means_over_the_baseline_and_over_the_best_mode_of_compile(
    summary: Callable[..., Any],
) -> None:
    found = summary(
        {"eager": 0.2, "compile": 0.4, "compile_autotune": 0.3, "tuned": 0.8},
        {"eager": 0.1, "compile": 0.2, "compile_autotune": 0.4, "tuned": 0.8},
    )
    gains = {gain.over: gain for gain in found.whole.gains}
    assert list(gains) == ["eager", "compile"]
    assert gains["eager"].ratio.value == pytest.approx((4 * 8) ** 0.5)
    assert gains["compile"].ratio.value == pytest.approx(2)
    assert gains["compile"].ratio.low < 2 < gains["compile"].ratio.high
    assert gains["eager"].count == 2


def test_ours_is_tuned_even_where_a_step_is_declared_after_it(summary: Callable[..., Any]) -> None:
    roles = (("eager", "baseline"), ("tuned", "ours"), ("step", "ours"), ("text", "published"))
    found = summary({"eager": 0.5, "tuned": 0.8, "step": 0.9, "text": 0.95}, roles=roles)
    (standing,) = found.whole.every
    assert standing.ours.case.variant == "tuned"
    # What a text published is no rival of ours, but it may be the best.
    assert standing.rival.case.variant == "eager"
    assert standing.best.case.variant == "text"


def test_without_tuned_the_last_of_ours_that_was_measured_counts(summary: Callable[..., Any]) -> None:
    roles = (("eager", "baseline"), ("first", "ours"), ("second", "ours"), ("never", "ours"))
    found = summary({"eager": 0.5, "second": 0.8, "first": 0.9}, roles=roles)
    assert found.whole.every[0].ours.case.variant == "second"


def test_where_ours_has_no_time_nothing_is_compared(measured: Callable[..., Any], make_run: Callable[..., Any]) -> None:
    failed = measured("tuned", *PLACES[0], status="crashed", error="lost")
    found = summarise(make_run([measured("eager", *PLACES[0]), failed]))
    assert found.whole.compared == ()
    assert found.whole.outcomes == (("ok", 1), ("crashed", 1))
    assert overview.headline(found)[0] == "No variant of ours was compared with a rival."
    assert found.whole.lowest.case.variant == "eager"


def test_a_comparison_of_two_scenarios_counts_once(measured: Callable[..., Any], make_run: Callable[..., Any]) -> None:
    cases = [measured("eager", *PLACES[0]), measured("tuned", *PLACES[0], 0.8)]
    found = summarise(make_run(cases, cases))
    assert len(found.whole.every) == 1
    assert found.whole.outcomes == (("ok", 2),)


def test_each_op_has_its_own_row_and_the_worst_one_is_named(
    measured: Callable[..., Any], make_run: Callable[..., Any]
) -> None:
    prelu = [measured("eager", *PLACES[0], 0.5), measured("tuned", *PLACES[0], 0.9)]
    other = [measured("eager", *PLACES[0], 0.5, op="other"), measured("tuned", *PLACES[0], 0.4, op="other")]
    found = summarise(make_run(prelu, other))
    assert [(op.op, len(op.behind)) for op in found.ops] == [("prelu", 0), ("other", 1)]
    assert found.worst_op.op == "other"
    assert found.whole.lowest.case.op == "other"
    shown = {column.head: column.cells for column in as_text(overview.by_op(found.ops)).columns}
    assert shown["behind"] == ("0 of 1", "1 of 1")
    assert shown["over eager"] == ("1.80x", "0.80x")


def test_warnings_are_told_once_with_their_count_and_the_noise(summary: Callable[..., Any]) -> None:
    found = summary({"eager": 0.5, "tuned": 0.8}, warnings=(Warning("throttled", "slow", "let it cool"),))
    assert [note.label for note in found.warnings] == ["throttled in 2 cases, such as"]
    assert overview.warnings(found)[0].text.startswith("The 95% interval of a time is 0.08% wide in the median case")


def test_the_table_of_who_is_behind_shows_the_interval(summary: Callable[..., Any]) -> None:
    found = summary({"eager": 0.8, "tuned": 0.4})
    shown = {column.head: column.cells for column in as_text(overview.behind(found.whole.behind)).columns}
    assert shown["rival / ours"] == ("0.500x",)
    assert shown["95% interval"] == ("0.500x to 0.500x",)
