"""What a report says of steps of training: the ladder, families of kernels by rung, losses, and claims on unscaling."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG

from harness import report
from harness.collection.steps.training import report as of_steps
from harness.collection.steps.training._figures import LOSS, UNSCALE
from harness.collection.steps.training.report import drawing, losses, rungs
from harness.collection.steps.training.report.losses import LossGroup
from harness.model import Attachment, Case, Claim, Measurement, Run, Work
from harness.profile import torch
from harness.report import build, claim_tables, sections
from harness.report import claims as of_claims
from harness.report.formats import markdown
from harness.report.frame import Line, by_scenario
from harness.report.tree import Figure, Note

MODEL = (("model", "swin_large"),)
STEPS = {"tf32": 0.150, "amp": 0.120, "unscale": 0.118, "fused_norm_adam": 0.090, "attention": 0.060, "graph": 0.058}
SECONDS = {"gemm": 0.5, "normalisation": 0.2, "elementwise_vectorised": 0.1, "unscale": 0.04, "reduction": 0.004}
"""Shares of a trace's window by family; the rest is idle."""
Make = Callable[..., Run]


def case(variant: str) -> Case:
    return Case("swin_train", variant, "float16", (("B", 64),), MODEL)


def timed(variant: str, seconds: float) -> Measurement:
    return Measurement(case(variant), "ok", (seconds,) * 11, timer="steady", work=Work(items=64, item="images"))


def trace(variant: str, window: float, shares: Mapping[str, float] = SECONDS) -> Attachment:
    busy = sum(shares.values())
    families = tuple((f"family_{name}", share) for name, share in shares.items())
    return Attachment(case(variant).id, "torch", (("time", window * busy), ("idle", 1 - busy), *families))


def trained(variant: str, means: Sequence[float], skipped: Sequence[Sequence[float]] = ((4, 8),)) -> Attachment:
    values = (("steps", 12.0), ("size", 4.0), ("seeds", float(len(means))))
    series: list[tuple[str, tuple[float, ...]]] = [("means", tuple(means)), ("forced", (4.0, 8.0))]
    for number, mean in enumerate(means, 1):
        series.append((f"losses_{number}", tuple(mean + 0.05 * (6 - point) for point in range(12))))
        series.append((f"skipped_{number}", tuple(skipped[(number - 1) % len(skipped)])))
    loss = sum(means) / len(means)
    return Attachment(case(variant).id, "losses", (*values, ("loss", loss), ("last", loss - 0.3)), series=tuple(series))


@pytest.fixture
def ladder(make_run: Make) -> Make:
    """A run of the rungs of Swin-Large, with round times."""

    def make(*attachments: Attachment, claims: Sequence[Claim] = (), steps: Mapping[str, float] = STEPS) -> Run:
        measured = [timed(variant, seconds) for variant, seconds in steps.items()]
        roles = tuple((name, "baseline" if name in ("tf32", "amp") else "ours") for name in steps)
        return make_run(measured, attachments=attachments, claims=tuple(claims), baseline="tf32", roles=roles)

    return make


def lines_of(run: Run) -> list[Line]:
    ((_, lines),) = by_scenario(run)
    return lines


def columns(table: Any) -> dict[str, tuple[Any, ...]]:
    return {column.head: column.cells for column in table.columns}


# ---- Rungs.


def test_a_rung_has_the_speedup_that_was_measured_beside_the_claimed_one(ladder: Make) -> None:
    claims = [
        Claim("S2", "amp", "speedup", 1.63, "any", over="tf32", where="*swin_large*"),
        Claim("S6", "attention", "speedup", 2.85, "any", over="tf32"),
        Claim("S6", "attention", "speedup", 1.0, "any", over="amp"),
        Claim("S8", "graph", "speedup", None, "any", over="attention"),
        Claim("S5", "windows", "speedup", 2.19, "any", over="tf32"),
        Claim("S4", "fused_norm_adam", "speedup", 2.11, "any", over="tf32", where="*swin_tiny*"),
    ]
    (group,) = rungs.groups(lines_of(ladder(claims=claims)))
    assert {name: found.over for name, found in group.claimed.items()} == {"amp": "tf32", "attention": "tf32"}
    amp, attention = group.claimed.values()
    assert (amp.measured, amp.rate) == pytest.approx((1.25, 1.63 * 64 / 0.150))
    assert (attention.measured, attention.rate) == pytest.approx((2.5, 2.85 * 64 / 0.150))


def test_a_ladder_without_claims_does_not_say_that_it_has_some(ladder: Make) -> None:
    claim = Claim("S2", "amp", "speedup", 1.63, "any", over="tf32")
    for claims in ((), (claim,)):
        (section,) = of_steps.sections(lines_of(ladder(claims=claims)))
        alt = next(block.alt for block in section.blocks if isinstance(block, Figure))
        assert alt.endswith("rung by rung, with the speed-ups that a text claims" if claims else "rung by rung")


def test_parts_of_a_step_add_up_to_the_time_without_the_profiler(ladder: Make) -> None:
    """The trace's window is twice the step, since the profiler slows the host down: kernels take 84.4% of it."""
    run = ladder(trace("tf32", 0.170), trace("amp", 0.240))
    (group,) = rungs.groups(lines_of(run))
    seconds = group.seconds("tf32")
    assert sum(seconds.values()) == pytest.approx(0.150)
    assert seconds["gemm"] == pytest.approx(0.5 * 0.170)
    assert seconds["other"] == pytest.approx(0.004 * 0.170), "a family of less than 1% counts as other"
    assert seconds["idle"] == pytest.approx(0.150 - 0.844 * 0.170)


def test_kernels_that_took_longer_in_the_trace_than_the_step_are_scaled_down_to_it(ladder: Make) -> None:
    """Kernels take 84.4% of a window of 160 ms, 135 ms, and the step without the profiler took 120 ms."""
    run = ladder(trace("tf32", 0.170), trace("amp", 0.160))
    (group,) = rungs.groups(lines_of(run))
    seconds = group.seconds("amp")
    assert sum(seconds.values()) == pytest.approx(0.120)
    assert seconds["idle"] == 0
    assert seconds["gemm"] == pytest.approx(0.120 * 0.5 / 0.844)
    (note,) = [block for block in rungs.tables(group) if isinstance(block, Note)]
    assert note.text.endswith("scaled down to the step, by: amp 12.53%.")


def test_a_written_row_adds_up_to_the_step_to_the_last_digit(ladder: Make) -> None:
    """Thirds and sevenths of a millisecond, each of which is rounded; most sums of rounded times would be off."""
    steps = {name: seconds + 1e-3 / 7 for name, seconds in STEPS.items()}
    run = ladder(*(trace(name, seconds * 0.97 + 1e-3 / 3) for name, seconds in steps.items()), steps=steps)
    (group,) = rungs.groups(lines_of(run))
    by_family, shares, taken_off, _ = rungs.tables(group)
    for table, names in ((by_family, ("rung", "step", "idle share")), (taken_off, ("rung", "compared with", "step"))):
        cells = columns(table)
        sums = zip(*(own for head, own in cells.items() if head not in names), strict=True)
        assert [f"{sum(map(float, row)):.2f}" for row in sums] == [f"{float(step):.2f}" for step in cells["step"]]
    assert columns(by_family)["step"] == tuple(f"{1e3 * seconds:.2f}" for seconds in steps.values())
    cells = columns(shares)
    assert "idle" not in cells
    rows = zip(*(own for head, own in cells.items() if head != "rung"), strict=True)
    assert [sum(row) for row in rows] == pytest.approx([1.0] * len(steps))
    assert cells["GEMM"][0] == pytest.approx(0.5 / 0.844), "the idle time isn't in it"


def test_streams_that_overlap_in_a_trace_add_up_to_the_step(ladder: Make, tmp_path: Path) -> None:
    """Two streams: 100 us of a product, 80 us of an addition of which 40 us lie beside it, and 20 us alone."""
    kernels = (
        ("ampere_sgemm_128x64_tn", 0, 100, 7),
        ("vectorized_elementwise_kernel", 60, 80, 20),
        ("mine", 150, 20, 7),
    )
    file = tmp_path / "trace-1.json"
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 1e9 + start, "dur": length, "pid": 0, "tid": stream,
         "args": {"device": 0, "stream": stream}}
        for name, start, length, stream in kernels
    ]  # fmt: skip
    file.write_text(json.dumps({"traceEvents": events}))
    (found,) = torch.imported(file, [case("amp").id])
    (group,) = rungs.groups(lines_of(ladder(found, steps={"tf32": 300e-6, "amp": 200e-6})))
    seconds = group.seconds("amp")
    assert seconds == pytest.approx({"gemm": 80e-6, "elementwise_vectorised": 60e-6, "other": 20e-6, "idle": 40e-6})
    cells = columns(next(rungs.tables(group)))
    assert (cells["GEMM"], cells["step"]) == (("0.08",), ("0.20",))


def test_what_a_rung_takes_off_is_told_of_the_rung_that_it_goes_on_from(ladder: Make) -> None:
    lean = {**SECONDS, "normalisation": 0.05}
    run = ladder(trace("tf32", 0.150), trace("amp", 0.120), trace("unscale", 0.118), trace("graph", 0.058, lean))
    (group,) = rungs.groups(lines_of(run))
    by_family, _, taken_off, _ = rungs.tables(group)
    assert columns(by_family)["step"] == ("150.00", "120.00", "118.00", "58.00")
    assert columns(by_family)["normalisation"] == ("30.00", "24.00", "23.60", "2.90")
    found = columns(taken_off)
    assert found["rung"] == ("amp", "unscale", "graph")
    assert found["compared with"] == ("tf32", "amp", "unscale"), "attention, which graph goes on from, has no trace"
    assert found["step"] == ("-30.00", "-2.00", "-60.00")
    assert found["normalisation"] == ("-6.00", "-0.40", "-20.70")


def test_other_ops_have_no_rungs(run: Run) -> None:
    assert not list(sections.drawings(run))
    assert all(not [*sections.sections(lines), *sections.verdicts(lines)] for _, lines in by_scenario(run))


# ---- The share of unscaling.


def test_a_claim_on_unscaling_is_answered_by_the_trace(ladder: Make) -> None:
    claims = [Claim("P1", "amp", UNSCALE, 0.057, "V100"), Claim("P1", "unscale", UNSCALE, 0.015, "V100")]
    run = ladder(trace("amp", 0.120), claims=claims)
    found = of_claims.comparisons(run.header.scenarios[0], run)
    amp, unscale = (note.text for note in claim_tables.notes(found))
    assert amp.endswith("here 4.74% by a trace; can't tell"), "4% of a window that is busy for 84.4%; one recording"
    assert unscale.endswith("not measured: 'unscale' has no share of unscaling in busy time")
    assert any(text.startswith("By a trace: ") for text in claim_tables.explained(found, "a GPU"))


def test_a_claim_that_curves_match_is_answered_by_the_losses(ladder: Make) -> None:
    claim = Claim("S7", "amp", LOSS, None, "any", says="nothing", text="curves match")
    run = ladder(trained("amp", (2.0, 2.5)), claims=[claim])
    (found,) = of_claims.comparisons(run.header.scenarios[0], run)
    (note,) = claim_tables.notes([found])
    assert note.text == "S7 has no figure in the text (amp: loss of trainings): here 2.250"


# ---- Losses.

WIDE, INSIDE, OFF = (2.0, 2.1, 2.2), (2.05, 2.1, 2.12), (2.15, 2.25, 2.3)


def grouped(run: Run) -> LossGroup:
    (group,) = losses.groups(lines_of(run))
    return group


def test_a_rung_off_the_spread_of_the_baselines_seeds_is_told(ladder: Make) -> None:
    group = grouped(ladder(trained("tf32", WIDE), trained("amp", INSIDE), trained("attention", OFF)))
    assert [rung.name for rung in group.off] == ["attention"]
    note, table = next(losses.verdicts(group)), [*losses.blocks(group)][-1]
    assert note.kind == "failure"
    assert "of 1 of 2 rungs lie within" in note.text
    assert note.text.endswith("; exceptions: attention.")
    assert columns(table)["within"] == ("baseline", "yes", "no: 0.0333 off")
    assert table.kinds == ("", "", "failure")


@pytest.mark.parametrize("means", [INSIDE, (1.0, 2.1, 3.1), WIDE])
def test_a_rung_whose_mean_lies_within_is_fine(ladder: Make, means: Sequence[float]) -> None:
    group = grouped(ladder(trained("tf32", WIDE), trained("amp", means)))
    assert not group.off
    assert {note.kind for note in losses.verdicts(group)} == {"strong"}


def test_a_rung_whose_losses_are_no_numbers_is_off(ladder: Make) -> None:
    group = grouped(ladder(trained("tf32", WIDE), trained("amp", (float("nan"),) * 3)))
    assert [rung.name for rung in group.off] == ["amp"]


@pytest.mark.parametrize(
    ("skipped", "told"), [(((4, 8), (4, 8), (4,)), "4, 8; 4"), (((),), "none"), (((4, 7, 8),), "4, 7, 8")]
)
def test_a_rung_that_skips_other_steps_is_told(ladder: Make, skipped: Sequence[Sequence[float]], told: str) -> None:
    group = grouped(ladder(trained("tf32", WIDE), trained("amp", INSIDE, skipped)))
    assert [rung.name for rung in group.odd] == ["amp"]
    assert columns([*losses.blocks(group)][-1])["skipped"] == ("4, 8", told)
    assert [note.kind for note in losses.verdicts(group)] == ["strong", "failure"]


def test_rungs_that_were_trained_otherwise_are_not_compared(ladder: Make) -> None:
    longer = trained("amp", OFF)
    longer = replace(longer, values=(("steps", 300.0), *longer.values[1:]))
    groups = losses.groups(lines_of(ladder(trained("tf32", WIDE), longer)))
    assert [(group.baseline.name, group.off) for group in groups] == [("tf32", []), ("amp", [])]


# ---- Pages and pictures.


@pytest.fixture
def whole(ladder: Make) -> Run:
    """Traces and losses of all rungs, with claims."""
    claims = [
        Claim("S2", "amp", "speedup", 1.63, "any", over="tf32"),
        Claim("S6", "attention", "speedup", 2.85, "any", over="tf32"),
    ]
    traces = [trace(name, 1.1 * seconds) for name, seconds in STEPS.items()]
    curves = [trained(name, [mean + 0.01 * place for mean in WIDE]) for place, name in enumerate(STEPS)]
    return ladder(*traces, *curves, claims=claims)


@pytest.mark.slow  # the next test has the pictures, the tests above the verdicts
def test_a_page_shows_all_pictures_and_a_console_the_verdicts(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at the pictures here, so none is drawn."""
    monkeypatch.setattr(FigureCanvasSVG, "print_svg", lambda *_, **__: None)
    paths = {path.relative_to(tmp_path).as_posix() for path in report.write(whole, tmp_path, ["plots"])}
    page = markdown.render(build.page(whole))
    own = [picture.path for picture in sections.drawings(whole)]
    assert [path.rpartition("-")[2] for path in own] == ["ladder.svg", "families.svg", "losses.svg"]
    assert paths >= set(own)
    assert all(f"]({path})" in page for path in own)
    assert "### Rungs" in page
    assert "### Losses" in page
    assert "torch.idle" in page
    assert "torch.family" not in page, "families have a table of their own"
    assert "of 5 of 5 rungs lie within" in str(build.screen(whole))
    assert "of 5 of 5 rungs lie within" in str(build.screen_of_verdicts(whole))


def test_a_noisy_rung_has_an_error_bar_and_a_steady_one_has_none(ladder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """`graph` takes 50 or 70 ms: the bar goes from 64 / 0.07 to 64 / 0.05 images a second."""
    run = ladder()
    noisy = (0.05,) * 5 + (0.06,) + (0.07,) * 5
    changed = [replace(one, samples=noisy) if one.case.variant == "graph" else one for one in run.measurements]
    (group,) = rungs.groups(lines_of(replace(run, measurements=tuple(changed))))
    low, high = group.rates("graph")
    assert (low, high) == pytest.approx((64 / 0.07, 64 / 0.05), rel=0.01)
    assert group.rates("attention") == (group.rate("attention"),) * 2
    drawn: list[Any] = []

    def looked_at(figure: Any, path: Path) -> list[Path]:
        (axes,) = figure.axes
        drawn.extend(bars.lines[2][0].get_segments() for bars in axes.containers if hasattr(bars, "has_xerr"))
        assert axes.get_legend_handles_labels()[1].count("95% interval") == 1
        assert axes.get_xlim()[1] > high, "the whole interval is in the picture"
        return [path]

    monkeypatch.setattr(drawing, "save", looked_at)
    drawing.ladder(group, Path("unused.svg"))
    ((segment,),) = drawn
    assert segment[:, 0] == pytest.approx((low, high))
    assert segment[:, 1] == pytest.approx(list(STEPS).index("graph"))


def test_texts_of_pictures_lie_apart(whole: Run, apart: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "save", apart)
    for picture in sections.drawings(whole):
        if not picture.path.endswith("losses.svg"):  # which has two axes
            assert picture.draw
            picture.draw(Path("unused.svg"))


def test_losses_are_drawn_as_differences_from_the_baseline(ladder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    group = grouped(ladder(trained("tf32", WIDE), trained("amp", OFF)))
    monkeypatch.setattr(drawing, "save", lambda drawn, _path: [drawn])
    drawn: Any
    (drawn,) = drawing.losses(group, Path("unused.svg"))
    upper, *small = drawn.axes
    (line,) = upper.get_lines()
    assert list(line.get_ydata()) == pytest.approx(group.baseline.curve)
    assert [axes.get_title() for axes in small] == [rung.name for rung in group.others]
    assert small[0].get_position().width == pytest.approx(upper.get_position().width), "one rung has the whole width"
    for rung, axes in zip(group.others, small, strict=True):
        (line,) = axes.get_lines()
        apart = [own - base for own, base in zip(rung.curve, group.baseline.curve, strict=True)]
        assert list(line.get_ydata()) == pytest.approx(apart)
        assert (axes.get_yscale(), axes.get_ylim()) == ("symlog", small[0].get_ylim())
    assert drawn.get_supylabel().startswith(f"below: loss minus the loss of {group.baseline.name}")


@pytest.mark.slow  # the next test and test_texts_of_pictures_lie_apart have pictures of fewer rungs
def test_twenty_rungs_have_a_plot_each_and_no_name_lies_on_another(
    ladder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"compile_half_norm_{number}" for number in range(20)]
    group = grouped(ladder(*(trained(name, OFF) for name in names), steps=dict.fromkeys(names, 0.1)))
    monkeypatch.setattr(drawing, "save", lambda drawn, _path: [drawn])
    drawn: Any
    (drawn,) = drawing.losses(group, Path("unused.svg"))
    drawn.draw_without_rendering()
    titles = [axes.title for axes in drawn.axes if axes.get_title()]
    assert {title.get_text() for title in titles} == {rung.name for rung in group.others}
    boxes = [title.get_window_extent() for title in [*titles, *drawn.legends[0].get_texts()]]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_a_legend_names_what_is_there(ladder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[list[str]] = []

    def keep(drawn: Any, _: Path) -> list[Path]:
        named.extend([text.get_text() for text in legend.get_texts()] for legend in drawn.legends)
        return []

    monkeypatch.setattr(drawing, "save", keep)
    for shown in (STEPS, {"tf32": 0.150, "amp": 0.120}):
        (picture,) = sections.drawings(ladder(steps=shown))
        assert picture.draw
        picture.draw(Path("unused.svg"))
    assert named == [["greys: torch", "warm colours: with kernels of ours"], ["greys: torch"]]
