"""What the ops of matrix products share: the check of a product, and variants that cuBLASLt makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from harness.collection.ops.elementwise import widened
from harness.cuda import cublaslt
from harness.cuda.cublaslt import Gemm, Matmul
from harness.model import Case
from harness.ops import Context, Expected, Extremes

if TYPE_CHECKING:
    import torch

_CHUNK = 2**26
"""Elements of a result that are computed at a time, so that a check needs little memory."""

EXTREMES = Extremes(
    exempt=dict.fromkeys(("smallest", "denormal"), "a library may take such a number for zero"),
    largest={"float32": 2.0**50, "bfloat16": 2.0**50, "float16": 2.0**8},
    why="sums of products are in float32, and a product without bias is rounded to the dtype",
)
"""The extreme values that the factors of a product may have."""


def expected(
    name: str, got: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None = None
) -> Iterator[Expected]:
    """What x (..., m, k) times weights (n, k), or a batch of both, plus bias (n) must be; parts follow each other.

    Two errors are allowed. The product and the sum with the bias may each be rounded to the type of `got`: by a unit in
    the last place of both terms together. And the k terms of a sum are added in float32 in any order. Rounding moves
    such a sum like a random walk: by sqrt(k) units of the length of the row of x times the length of the row of the
    weights. Where each of the two rows is one number, all terms are equal. Added one after another, they may all be
    rounded the same way: by half a unit of a sum that grows to k terms, so by k / 4 units in all.
    """
    import torch

    unit, k = float(torch.finfo(got.dtype).eps), x.shape[-1]
    of_sums = float(torch.finfo(torch.float32).eps)
    each = max(1, got[0].numel())
    rows = max(1, _CHUNK // each)
    offset = 0.0 if bias is None else widened(bias)[0]
    for first in range(0, got.shape[0], rows):
        here = slice(first, first + rows)
        part, factor = widened(x[here], weights[here] if weights.dim() > 2 else weights)
        product = part @ factor.mT
        lengths = part.norm(dim=-1, keepdim=True) * factor.norm(dim=-1).unsqueeze(-2)
        equal = _is_one_number(part).unsqueeze(-1) & _is_one_number(factor).unsqueeze(-2)
        lengths.mul_(torch.where(equal, max(math.sqrt(k), k / 4), math.sqrt(k))).mul_(of_sums)
        rounding = product.abs().add_(abs(offset)).mul_(unit)
        yield Expected(name, got[here], product.add_(offset), rounding.add_(lengths), first * each)


def _is_one_number(rows: torch.Tensor) -> torch.Tensor:
    """Whether all elements of a row (..., k) are equal."""
    return (rows == rows[..., :1]).all(-1)


def needs(product: Callable[[Case], Gemm]) -> Callable[[Case], str | None]:
    """Why a variant that makes this product of a case can't run it; None if it can."""
    return lambda case: cublaslt.obstacle(product(case))


def prepared(ctx: Context, product: Gemm, algorithms: int = 1) -> Matmul:
    """The product, ready to be called until the case is over. algorithms: as `Matmul` takes them."""
    matmul = cublaslt.Matmul(product, algorithms, hot=ctx.case.cache == "hot")
    ctx.defer(matmul.close)
    return matmul
