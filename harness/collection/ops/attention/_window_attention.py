"""What the two ops of attention over windows share: their mask, and what outputs must be.

A window takes mask w % G, where an image has G windows. Source of the shapes and of the mask: Swin Transformer (Liu et
al., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.expressions import ExpressionError
from harness.model import Case, Work
from harness.ops import Choice, Context, Expected, Extremes, Symbols, Tensors

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")
MASK = Choice("what is added to all scores of a window beside the bias: nothing, or Swin's mask", ("none", "shift"))
APART = -100.0
"""What Swin's mask adds to a query and a key that were no neighbours before the shift."""


def extremes(scores: float, apart: dict[str, int], *values: str) -> Extremes:
    """The extreme values of an op. scores: the largest number of halves. values: inputs that weights multiply."""
    infinities = [f"{name}.{kind}" for name in values for kind in ("infinity", "minus_infinity", "masked")]
    return Extremes(
        exempt=dict.fromkeys(
            infinities, "a weight that rounds to 0 in halves makes NaN of it, and infinity in float64"
        ),
        largest={"float16": scores, "bfloat16": scores, "mask": math.inf},
        why="scores are halves in torch's ways; and rounding decides which of two large scores is the larger one",
        apart=apart,
    )


_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of one rounding."""
_SCORES = 2**25
"""Scores of which the check computes the reference at a time."""


def masks(s: Symbols) -> int:
    """The number of masks, 0 without any. Raises ExpressionError where the windows don't make whole images."""
    if s["mask"] == "none":
        return 0
    if s["W"] % s["G"]:
        raise ExpressionError(f"W = {s['W']} isn't a multiple of G = {s['G']}: each image has G windows")
    return int(s["G"])


def shift_mask(windows: int, tokens: int) -> torch.Tensor:
    """The masks (windows, tokens, tokens) of an image that was rolled by half a window: 0, or APART.

    Windows and tokens that aren't squares of a number are taken as one row.
    """
    import torch

    def sides(count: int) -> tuple[int, int]:
        side = math.isqrt(count)
        return (side, side) if side * side == count else (1, count)

    regions = torch.zeros(1, 1, dtype=torch.int64)
    for of_windows, of_tokens in zip(sides(windows), sides(tokens), strict=True):
        place = torch.arange(of_windows * of_tokens)
        # The last window has pixels from both ends of the image; all other windows are whole.
        last, wrapped = (of_windows - 1) * of_tokens, of_windows * of_tokens - of_tokens // 2
        cut = ((place >= last).long() + (place >= wrapped).long()).view(of_windows, of_tokens)
        regions = (3 * regions[:, None, :, None] + cut[None, :, None, :]).flatten(2).flatten(0, 1)
    return torch.where(regions[:, :, None] == regions[:, None, :], 0.0, APART)


def random(ctx: Context, *shape: int) -> torch.Tensor:
    """Normal random numbers of the case's type."""
    import torch

    return torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype)


def made_mask(ctx: Context, tokens: int) -> torch.Tensor:
    """The case's masks; an empty tensor without any."""
    import torch

    count = masks(ctx.case.values)
    if not count:
        return torch.empty(0, tokens, tokens, device=ctx.device, dtype=ctx.dtype)
    return shift_mask(count, tokens).to(ctx.device, ctx.dtype)


def flex_obstacle(case: Case) -> str | None:
    """Why FlexAttention can't do a case; None if it can."""
    size = case.symbols["D"]
    if size < 16 or size & (size - 1):
        return f"FlexAttention takes heads of 16, 32, 64 and so on, not of {size}"
    return None


def work(s: Symbols, tokens: int, moved: Work) -> Work:
    """The work that moves these bytes. tokens: of a window. Rows and columns that only fill tiles aren't counted."""
    return Work(moved.read, moved.written, flops=(("case", 4 * s["W"] * s["H"] * tokens**2 * s["D"]),))


def by_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attention as Swin Transformer writes it; q, k, v: (W, H, T, D), bias: (H, T, T), mask: (G, T, T)."""
    import torch

    windows, heads, tokens, size = q.shape
    scores = q * size**-0.5 @ k.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias.unsqueeze(0)
    if mask is not None:
        scores = scores.view(-1, len(mask), heads, tokens, tokens) + mask.unsqueeze(1).unsqueeze(0)
        scores = scores.view(windows, heads, tokens, tokens)
    return torch.softmax(scores, dim=-1) @ v


def expected(
    ctx: Context, got: torch.Tensor, inputs: Tensors, bias: torch.Tensor | None, mask: torch.Tensor | None
) -> Iterator[Expected]:
    """What the output must be, some windows at a time, and how far off each element may be.

    got: (W, H, T, D), as are q, k and v of `inputs`. Allowed is one rounding of each score before bias and mask, of
    each weight and of the result, and a tenth more for all that is done in float32, where a sum of a score and what is
    added loses up to 2^-22 of the latter. (A mask beyond 2^53 leaves nothing of a score in float64 either.)
    """
    import torch

    windows, heads, tokens, size = got.shape
    images = len(mask) if mask is not None else 1
    step = max(1, _SCORES // max(1, heads * tokens**2 * images)) * images
    rounding = _ROUNDING[ctx.case.dtype]
    for first in range(0, windows, step):
        here = slice(first, first + step)
        q, k, v = (part[here].double() for part in (inputs.q, inputs.k, inputs.v))
        scores = q @ k.transpose(-2, -1) * size**-0.5
        sizes, plain = scores.abs(), scores.clone()
        if bias is not None:
            scores += bias.double()
        if mask is not None:
            scores.view(-1, images, heads, tokens, tokens).add_(mask.double().unsqueeze(1))
        added = (scores - plain).abs()
        sizes += torch.where(added < 2.0**53, added * (2.0**-22 / rounding), 0.0)
        weights = torch.softmax(scores, dim=-1)
        want = weights @ v
        # A score that is off by e changes a weight by its share e, and the sum of all weights, too.
        # A weight of 0 has no error, however large its score is below the others.
        shares = torch.where(weights > 0, weights * sizes, 0.0)
        off = shares @ v.abs() + shares.sum(-1, keepdim=True) * want.abs() + weights @ v.abs() + want.abs()
        allowed = 1.1 * rounding * off + torch.finfo(got.dtype).smallest_normal
        yield Expected("out", got[here], want, allowed, start=first * heads * tokens * size)
