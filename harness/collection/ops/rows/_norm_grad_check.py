"""What the backwards of LayerNorm and RMSNorm must give: inputs, the reference in float64, and the allowed errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.ops import Context, Expected, Extremes, Tensors

if TYPE_CHECKING:
    import torch

_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that a rounding changes a number, relative to it."""
_LEAST = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
"""The most that a rounding changes one of the smallest numbers."""
_CHECKED = 2**24  # elements of a matrix that are checked at a time


def extremes(*statistics: str) -> Extremes:
    """The extreme values that inputs may have. statistics: the inputs that x determines."""
    return Extremes(
        exempt={
            **dict.fromkeys(statistics, "it is a statistic of x"),
            "gamma": "each row has all of gamma, so no row would stay normal",
            "lowest": "the error allowed of a sum takes its terms to have random signs",
        },
        largest=dict.fromkeys(("float32", "bfloat16"), 2.0**40),
        why="sums of products are in float32",
    )


def make(ctx: Context, normalised: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """Inputs: normal numbers, and the statistics that x really has. normalised: gives them, as `mean` and `rstd`."""
    import torch

    rows, columns = ctx.s.M, ctx.s.N
    shapes = {"dy": (rows, columns), "x": (rows, columns), "gamma": (columns,)}
    inputs: dict[str, Any] = {
        name: torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype)
        for name, shape in shapes.items()
    }
    of_x = normalised(inputs["x"])
    names = [tensor.name for tensor in ctx.op.inputs]
    return inputs | {name: getattr(of_x, name).float() for name in ("mean", "rstd") if name in names}


@dataclass(slots=True)
class ExactRows:
    """The backward of some rows in float64: dx, and what the rows add to dgamma and dbeta.

    dy, xhat, g: (rows, N), where g is dy * gamma. terms: (rows, N), (|x| + |mean|) * rstd. rstd, mean_g (0 where the op
    has no mean), mean_gx: (rows, 1), where the last two are means over a row, of g and of g * xhat.
    """

    dy: torch.Tensor
    xhat: torch.Tensor
    terms: torch.Tensor
    g: torch.Tensor
    rstd: torch.Tensor
    mean_g: torch.Tensor | float
    mean_gx: torch.Tensor

    @classmethod
    def of(cls, t: Tensors, part: slice = slice(None)) -> ExactRows:
        """The rows `part` of the inputs."""
        dy, x, rstd = t.dy[part].double(), t.x[part].double(), t.rstd[part, None].double()
        has_mean = hasattr(t, "mean")
        mean = t.mean[part, None].double() if has_mean else rstd.new_zeros(rstd.shape)
        xhat, g = (x - mean) * rstd, dy * t.gamma.double()
        mean_g = g.mean(1, keepdim=True) if has_mean else 0.0
        return cls(dy, xhat, (x.abs() + mean.abs()) * rstd, g, rstd, mean_g, (g * xhat).mean(1, keepdim=True))

    @property
    def dx(self) -> torch.Tensor:
        """The gradient of x, (rows, N)."""
        return self.rstd * (self.g - self.mean_g - self.xhat * self.mean_gx)

    def allowance(self) -> torch.Tensor:
        """The error (rows, N) that dx may have before it is rounded to its dtype.

        Its three terms may be far larger than dx. A unit is 2**-24 of a number: the most that a rounding to float32
        changes it. Allowed are, times rstd:
        - 4 units of each term;
        - for the sums 16 units of what they would be if all that they add were positive: chains of k additions err by
          about 0.2 * sqrt(k) units of it, and k is at most a few thousand.
        """
        unit = _UNIT["float32"]
        g, xhat = self.g.abs(), self.xhat.abs()
        of_sums = g.mean(1, keepdim=True) + xhat * (g * xhat).mean(1, keepdim=True)
        return self.rstd.abs() * unit * (4 * g + 20 * of_sums)

    def column_sums(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """What the rows add to dgamma and to dbeta, each with the sum of the squares of the terms.

        xhat is a difference of two terms, which float32 rounds by their sizes. So `terms` stands for it in the squares.
        """
        return {
            "dgamma": ((self.dy * self.xhat).sum(0), (self.dy * self.terms).square().sum(0)),
            "dbeta": (self.dy.sum(0), self.dy.square().sum(0)),
        }


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The op's outputs in float64."""
    exact = ExactRows.of(t)
    every = {"dx": exact.dx} | {name: sums for name, (sums, _) in exact.column_sums().items()}
    return {tensor.name: every[tensor.name] for tensor in ctx.op.outputs}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """Each dx must be as near to the reference as its terms allow, each sum of a column as near as its length does.

    An infinity in dy or x makes infinities or NaN of them, which depends on the order of the operations.
    """
    sums: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for part in _parts(ctx.s.M, ctx.s.N):
        exact = ExactRows.of(t.before, part)
        allowed = _rounded(ctx, exact.dx, exact.allowance())
        yield Expected("dx", t.dx[part], exact.dx, allowed, start=part.start * ctx.s.N, loose=True)
        for name, (total, squares) in exact.column_sums().items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + total, before[1] + squares
    for name in ("dgamma", "dbeta"):
        if hasattr(t, name):
            # The terms' signs are random, so their sum is about as large as the root of the sum of their squares.
            total, squares = sums[name]
            yield Expected(name, getattr(t, name), total, _rounded(ctx, total, 2.0**-16 * squares.sqrt()), loose=True)


def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _CHECKED // columns)
    return (slice(first, first + step) for first in range(0, max(1, rows), step))


def _rounded(ctx: Context, want: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """The error allowed of what is wanted once it is rounded to the dtype."""
    return allowed + _UNIT[ctx.case.dtype] * want.abs() + _LEAST[ctx.case.dtype]
