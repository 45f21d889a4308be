"""An op with a fact, a metric, a figure, a section and a verdict of its own, as the op of another package may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import metrics, units
from harness.metrics import Metric, Subject
from harness.ops import Context, Launch, Op, Tensor, Tensors

if TYPE_CHECKING:
    from harness.report.frame import Line
    from harness.report.tree import Figure, Note, Section

HOPS = "hops"
metrics.fact(HOPS, "hops", units.COUNT, "how often a number is moved", head="")


def _hops_a_second(s: Subject) -> float | None:
    return s.facts[HOPS] / s.time if HOPS in s.facts and s.time else None


metrics.add(
    Metric("hop_rate", "hops a second", units.PLAIN, _hops_a_second, "hops, over the time", "higher", head="hops/s",
           keep=8),
    after="items",
)  # fmt: skip


class Pages:
    """What reports have of the op."""

    ELSEWHERE = ("mine.",)

    def figures(self, lines: Sequence[Line]) -> Iterator[Figure]:
        """A bar for each variant."""
        from harness.report.sections import figure

        yield figure("hops of each variant", partial(draw, lines), lines[0].scenario.name, "hops")

    def sections(self, lines: Sequence[Line]) -> Iterator[Section]:
        """How often numbers hop."""
        from harness.report.tree import Column, Section, Table, text_column

        hops = tuple(line.subject.facts.get(HOPS, "") for line in lines)
        names = text_column("way", (line.case.variant for line in lines))
        yield Section("Hops", (Table((names, Column("times", hops, units.COUNT, hint="moves of a number"))),))

    def verdicts(self, lines: Sequence[Line]) -> Iterator[Note]:
        """Who hops most."""
        from harness.report.tree import Note

        most = max(lines, key=lambda line: line.subject.facts.get(HOPS, 0.0))
        yield Note(f"{most.case.variant} hops most", "strong")


def draw(lines: Sequence[Line], path: Path) -> list[Path]:
    """Draw the hops."""
    from harness.report.canvas import canvas, save

    with canvas(2, "Hops") as (drawing, axes):
        axes.bar([line.case.variant for line in lines], [line.subject.facts.get(HOPS, 0.0) for line in lines])
        return save(drawing, path)


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    return {"y": t.x}


OP = Op(
    "hop",
    "y = x, by way of other places",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    dtypes=("float32",),
    reference=reference,
    tolerance={"float32": (0.0, 0.0)},
    pages=Pages,
)


@OP.variant("eager", "one copy", role="baseline", devices=("cpu",))
def eager(ctx: Context) -> Launch:
    ctx.report(HOPS, 1)
    return lambda t: t.y.copy_(t.x)


@OP.variant("twice", "two copies", devices=("cpu",))
def twice(ctx: Context) -> Launch:
    ctx.report(HOPS, 2)
    return lambda t: t.y.copy_(t.x.clone())
