"""A metric, and a sentence in the report, of your own: `harness check --ops examples/own_metric.py` tries the op.

The metric says what it costs to move a terabyte through a kernel, on a machine that is rented by the hour. Tables, CSV,
plots, claims and floors have the metric by its name, as they have `bandwidth`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness import metrics, units
from harness.metrics import Metric, Subject
from harness.ops import Context, Launch, Op, Tensor, Tensors

if TYPE_CHECKING:
    from harness.report.frame import Line
    from harness.report.tree import Note

DOLLARS_AN_HOUR = 3.0
metrics.fact("threshold", "threshold", units.PLAIN, "numbers nearer to zero than this become zero")


def _cost(s: Subject) -> float | None:
    """Dollars for 10^12 bytes that the op has to move; None where the case has no time, or isn't of this op."""
    if not s.time or not s.work or "threshold" not in s.facts:
        return None
    return DOLLARS_AN_HOUR / 3600 * s.time / s.work.moved * 1e12


metrics.add(Metric("cost", "dollars a terabyte", units.PLAIN, _cost, "price of the time", "lower", head="$/TB", keep=8))


class Pages:
    """What reports say of the op. `sections` and `figures` may stand here, too: harness/report/sections.py has all."""

    def verdicts(self, lines: Sequence[Line]) -> Iterator[Note]:
        """A sentence below the table on the console."""
        from harness.report.tree import Note

        cheapest = min(lines, key=lambda line: line.values["cost"] or float("inf"))
        yield Note(f"{cheapest.case.variant} is the cheapest", "strong")


def reference(_: Context, t: Tensors) -> dict[str, object]:
    """What is right."""
    return {"y": t.x * (t.x.abs() > 0.5)}


OP = Op("shrink", "y = x where |x| > 0.5, else 0", {"N": "elements"}, (Tensor("x", ("N",)),), (Tensor("y", ("N",)),),
        dtypes=("float32",), reference=reference, pages=Pages)  # fmt: skip


@OP.variant("eager", "torch.nn.functional.hardshrink", role="baseline", devices=("cuda", "cpu"), returns=True)
def eager(ctx: Context) -> Launch:
    """A variant reports a figure that only it knows, which becomes a column, too."""
    from torch.nn.functional import hardshrink

    ctx.report("threshold", 0.5)
    return lambda t: (hardshrink(t.x, 0.5),)
