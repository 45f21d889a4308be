"""Runs with round numbers, and golden files (UPDATE_GOLDEN=1 writes them anew)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from harness.model import (
    Attachment,
    Case,
    Claim,
    DeviceFacts,
    Header,
    KernelFacts,
    Limits,
    Machine,
    Measurement,
    Run,
    Scenario,
    StreamPoint,
    Traffic,
    Warning,
    Work,
)
from harness.report import front

GOLDEN = Path(__file__).parent.parent / "golden"
PEAK = 4e12
ITEMSIZE = {"float32": 4, "float16": 2}
Build = Callable[..., Measurement]


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares a text with the golden file of that name."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"differs from {path}; UPDATE_GOLDEN=1 accepts the change"

    return check


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no op were loaded, so that a page doesn't change with the ops."""
    monkeypatch.setattr(front, "LOADED", {})


@pytest.fixture
def gpu() -> Machine:
    device = DeviceFacts(
        name="A GPU",
        memory_bytes=141 * 10**9,
        cache_bytes=50 * 10**6,
        compute_capability="9.0",
        multiprocessors=132,
        max_sm_clock_hz=1.98e9,
        power_limit_w=700.0,
    )
    return Machine(
        kind="cuda",
        fingerprint="c0ffee",
        devices=(device,),
        driver="580.1",
        cpu="A processor",
        cpu_count=16,
        versions=(("python", "3.12.3"), ("torch", "2.13.0")),
    )


@pytest.fixture
def limits() -> Limits:
    """Every stream at 4 TB/s, whatever its size, but 4.8 TB/s for reads alone; 1% slower at the end."""
    shares = ((1, 0, 4.8e12), (1, 1, PEAK), (0, 1, PEAK))
    points = [
        StreamPoint(size * read // (read + write), size * write // (read + write), size / bandwidth, "kernel")
        for read, write, bandwidth in shares
        for size in (10**6, 10**8, 10**10)
    ]
    copy = StreamPoint(5 * 10**9, 5 * 10**9, 10**10 / PEAK, "memcpy", is_copy=True)
    return Limits((*points, copy), end=(StreamPoint(5 * 10**9, 5 * 10**9, 1.01 * 10**10 / PEAK, "memcpy"),))


@pytest.fixture
def measured() -> Build:
    """A measurement whose median is exactly `share` of the ceiling's bandwidth, with a noise of 0.08%.

    Of 11 samples, the second and the tenth bound the median with 95%.
    """

    def make(
        variant: str,
        dtype: str,
        shape: Sequence[tuple[str, int]],
        share: float = 0.5,
        op: str = "prelu",
        choices: Sequence[tuple[str, Any]] = (),
        world: int = 1,
        **fields: Any,
    ) -> Measurement:
        elements = 1
        for _, size in shape:
            elements *= size
        work = Work(elements * ITEMSIZE[dtype], elements * ITEMSIZE[dtype])
        time = work.moved / PEAK / share
        samples = fields.get("samples", tuple(time * (1 + (i - 5) * 1e-4) for i in range(11)))
        known = {
            "samples": samples,
            "call_samples": tuple(1.01 * sample for sample in samples),
            "timer": "graph",
            "work": work,
            "traffic": Traffic(work.read, work.written),
            "stopped": "interval",
        }
        if fields.get("status", "ok") != "ok":
            del known["samples"], known["call_samples"]
        case = Case(op, variant, dtype, tuple(shape), tuple(choices), world)
        return Measurement(case, **{"status": "ok", **known, **fields})

    return make


@pytest.fixture
def make_run(gpu: Machine, limits: Limits) -> Callable[..., Run]:
    """A run of scenarios, each given by its measurements; the fields of the first scenario can be set."""

    def make(
        *scenarios: Iterable[Measurement],
        losses: tuple[str, ...] = (),
        attachments: tuple[Attachment, ...] = (),
        **fields: Any,
    ) -> Run:
        made: list[Scenario] = []
        measurements: list[Measurement] = []
        for index, of_scenario in enumerate(map(tuple, scenarios)):
            ids = tuple(dict.fromkeys(m.case.id for m in of_scenario))
            first = {"name": of_scenario[0].case.op, "title": "", "op": of_scenario[0].case.op, "cases": ids}
            made.append(Scenario(**{**first, **(fields if index == 0 else {})}))
            measurements += of_scenario
        header = Header(
            name="a-run",
            machine=gpu,
            scenarios=tuple(made),
            command=("harness", "run", "prelu", "--only", "prelu/*"),
            started="2026-01-01T10:00:00+00:00",
            finished="2026-01-01T10:05:00+00:00",
            plan="9" * 64,
            jobs=len(measurements),
            limits=limits,
            git_revision="0123abc",
            git_dirty=True,
            harness_version="0.1.0",
        )
        return Run(header, tuple(measurements), losses, attachments)

    return make


@pytest.fixture
def run(measured: Build, make_run: Callable[..., Run]) -> Run:
    """One of everything: failures, warnings, claims, more bytes moved, a name with a pipe, a case not reached."""
    big, small = (("N", 64), ("C", 128), ("H", 56)), (("N", 64), ("C", 512), ("H", 7))
    throttled = Warning("throttled", "the device lowered its clocks: power", "check its power limit")
    twice = Traffic(64 * 128 * 56 * 4 * 2, 64 * 128 * 56 * 4)
    kernel = (KernelFacts("prelu_tuned", 32, 0, 0), KernelFacts("prelu_tail", 40, 8, 0))
    crash = "illegal address | at <kernel>\nTraceback: the rest"
    prelu = [
        measured("eager", "float32", big, 0.5, traffic=twice),
        measured("a|b", "float32", big, 0.25),
        measured("tuned", "float32", big, 1.0, kernels=kernel),
        measured("eager", "float16", big, 0.4),
        measured("a|b", "float16", big, status="crashed", error=crash),
        measured("tuned", "float16", big, 0.98, warnings=(throttled,), kernels=kernel),
        measured("eager", "float32", small, 0.5),
        measured("a|b", "float32", small, status="unsupported", error="49 isn't a multiple of 4", samples=()),
        measured("tuned", "float32", small, 0.96, warnings=(throttled,), kernels=kernel),
    ]
    copies = [measured("eager", "float32", (("N", 2**k),), 0.9, op="copy") for k in (18, 20, 22, 24)]
    planned = (*(m.case.id for m in prelu), "prelu/tuned/float16/N64-C512-H7")
    claims = (
        Claim("R2", "tuned", "speedup", 1.3, "A100", where="prelu/float32/*", text="up 30% and more"),
        Claim("R2", "tuned", "bandwidth", 1.35e12, "A100", where="prelu/*/N64-C128-*"),
        Claim("R3", "a|b", "speedup", 1.0, "V100", over="tuned", where="*-H7"),
        Claim("R4", "fast", "of_peak", 0.9, "V100"),
    )
    return make_run(
        prelu,
        copies,
        losses=("results.jsonl: the last line is cut; one result is lost",),
        title="PReLU from naive to tuned",
        shows="What one division an element costs.",
        source="A text",
        rows=("R2", "R3"),
        claims=claims,
        cases=planned,
    )


@pytest.fixture
def apart() -> Callable[[Any, Path], list[Path]]:
    """Takes the place of `save`."""
    return _assert_apart


def _assert_apart(drawing: Any, _path: Path) -> list[Path]:
    """Check, in place of `save`, that the texts of a figure neither overlap nor lie outside of it."""
    drawing.draw_without_rendering()
    boxes = list(_visible_boxes(drawing))
    assert len(boxes) > 4
    for (text, box), (other, another) in combinations(boxes, 2):
        assert box.width * box.height == 0 or not box.overlaps(another), f"'{text}' lies on '{other}'"
    for text, box in boxes:
        assert -0.5 <= box.x0 < box.x1 <= drawing.bbox.x1 + 0.5, f"'{text}' is cut off"
        assert -0.5 <= box.y0 < box.y1 <= drawing.bbox.y1 + 0.5, f"'{text}' is cut off"
    return []


def _visible_boxes(drawing: Any) -> Iterator[tuple[str, Any]]:
    from matplotlib.text import Text

    (axes,), legends = drawing.axes, drawing.legends
    named = [text for legend in legends for text in legend.get_texts()]
    # Only ticks in view are drawn; _update_ticks gives them. The second label of a tick is above the axes.
    every = [tick for axis in (axes.xaxis, axes.yaxis) for tick in axis._update_ticks()]
    ticks = [label for tick in every for label in (tick.label1, tick.label2)]
    for text in [*ticks, axes.xaxis.label, axes.yaxis.label, axes._left_title, *axes.texts, *named]:
        if text.get_text().strip() and text.get_visible():
            yield text.get_text(), Text.get_window_extent(text)  # an annotation's has its leader too


def drawn(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The axes of the run's only figure."""
    from harness.report import charts, plotting  # with matplotlib, which few tests need

    monkeypatch.setattr(charts, "save", lambda drawing, _path: [drawing])
    (figure,), _ = plotting.plan(run)
    drawing: Any
    (drawing,) = charts.draw(figure, 4e12, folder / "x.svg")
    drawing.draw_without_rendering()
    return drawing.axes[0]
