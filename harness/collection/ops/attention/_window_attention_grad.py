"""The backward of attention over windows: its tensors, the exact result, the allowed errors, and what torch runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from harness.expressions import ExpressionError
from harness.model import Traffic
from harness.ops import ITEMSIZE, Choice, Context, Expected, Extremes, Symbols, Tensor, Tensors

if TYPE_CHECKING:
    import torch

HALVES = ("float16", "bfloat16")
SYMBOLS = {
    "W": "windows",
    "H": "heads",
    "T": "tokens of a window",
    "D": "size of a head",
    "G": "masks, where there are any: window w takes mask w % G; a divisor of W",
}
DEFAULTS = {"G": "1"}
CHOICES = {
    "bias": Choice("whether each head adds a bias (T, T), whose gradient is wanted", ("yes", "no")),
    "mask": Choice("whether windows add one of G masks (T, T), as Swin's shifted windows do", ("none", "shift")),
}

_INFINITIES = [f"{name}.{kind}" for name in ("v", "dout") for kind in ("infinity", "minus_infinity", "masked")]
EXTREMES = Extremes(
    exempt=dict.fromkeys(_INFINITIES, "a probability that rounds to 0 makes NaN of it, and infinity in float64"),
    largest=dict.fromkeys(HALVES, 2.0**4) | {"mask": math.inf},
    why="scores are halves in torch's ways and in `unfused`, and the errors allowed are of the first order in theirs",
    apart=dict.fromkeys(("dout", "q", "k", "v"), 0),
)

_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that a rounding changes a number, relative to it."""
_LEAST = {"float16": 2.0**-25, "bfloat16": 2.0**-126}
"""The most that a rounding changes one of the smallest numbers."""
_CHECKED = 2**22  # elements of P that are checked at a time
_IN_FLOAT32 = ("fused", "tuned")
"""Variants that don't round scores, nor the gradients of P, to the case's dtype."""


# ---- Tensors. A bias, a mask or a gradient that isn't there has no heads, or no masks.


def squares_of_heads(s: Symbols) -> tuple[int, ...]:
    """Sizes of the bias and of its gradient."""
    return s["H"] if s["bias"] == "yes" else 0, s["T"], s["T"]


def squares_of_masks(s: Symbols) -> tuple[int, ...]:
    """Sizes of the masks. Raises ExpressionError where windows can't take them in turn."""
    if s["mask"] == "none":
        return 0, s["T"], s["T"]
    if s["W"] % s["G"]:
        raise ExpressionError(f"W = {s['W']} isn't a multiple of G = {s['G']}: each image has all masks")
    return s["G"], s["T"], s["T"]


_MATRIX = ("W", "H", "T", "D")
INPUTS = (
    *(Tensor(name, _MATRIX) for name in ("dout", "q", "k", "v")),
    Tensor("bias", squares_of_heads),
    Tensor("mask", squares_of_masks),
)
OUTPUTS = (*(Tensor(name, _MATRIX) for name in ("dq", "dk", "dv")), Tensor("dbias", squares_of_heads))


def make(ctx: Context) -> dict[str, Any]:
    """Normal numbers; masks are -100 between tokens of different regions, of which a window has up to three."""
    import torch

    inputs = {
        tensor.name: torch.randn(
            tensor.shapes(ctx.case.values)[0], generator=ctx.generator, device=ctx.device, dtype=ctx.dtype
        )
        for tensor in INPUTS
        if tensor.name != "mask"
    }
    masks, tokens, _ = squares_of_masks(ctx.case.values)
    region = torch.randint(3, (masks, tokens), generator=ctx.generator, device=ctx.device)
    different = region[:, :, None] != region[:, None, :]
    return inputs | {"mask": torch.where(different, -100.0, 0.0).to(ctx.dtype)}


# ---- The exact result.


@dataclass(slots=True)
class ExactAttentionGrad:
    """The backward of some windows in float64.

    added: bias + mask, which broadcasts to scores. scores: before it is added. p: probabilities. dp, ds: gradients of
    probabilities and of scores with what is added; (windows, H, T, T).
    """

    dout: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    added: torch.Tensor
    scores: torch.Tensor
    p: torch.Tensor
    dp: torch.Tensor
    ds: torch.Tensor

    @classmethod
    def of(cls, t: Tensors, part: slice = slice(None)) -> Self:
        """The windows `part` of the inputs."""
        import torch

        dout, q, k, v = (tensor[part].double() for tensor in (t.dout, t.q, t.k, t.v))
        added = added_to_scores(t, torch.arange(t.q.shape[0], device=t.q.device)[part], torch.float64)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        p = torch.softmax(scores + added, -1)
        dp = dout @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        return cls(dout, q, k, v, added, scores, p, dp, ds)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Compute dq, dk and dv."""
        scale = self.q.shape[-1] ** -0.5
        return {"dq": self.ds @ self.k * scale, "dk": self.ds.mT @ self.q * scale, "dv": self.p.mT @ self.dout}

    def allowances(self, unit: float, least: float, rounded: bool) -> dict[str, torch.Tensor]:
        """The error of dq, dk and dv before their own rounding, and the error of each term of dbias as `terms`.

        unit, least: of the dtype, to which every variant rounds P and dS for their products. rounded: scores, scaled q
        and dP are rounded to it, too.

        Roundings are independent, so the error of a sum is about the root of the sum of squared errors of its terms; 4
        times that is allowed. Sums in float32 may be off by 16 units (2**-20) of what they are if all terms are
        positive: chains of k additions err by about 0.2 * sqrt(k) units of it, and k is at most a few thousand.
        """
        scale, added = self.q.shape[-1] ** -0.5, self.added.abs().nan_to_num(posinf=0.0)
        q, k, v, dout, ds = (tensor.abs() for tensor in (self.q, self.k, self.v, self.dout, self.ds))
        of_score = 2.0**-20 * (q @ k.mT * scale + added)
        of_dp = 2.0**-20 * (dout @ v.mT)
        if rounded:
            of_score += unit * (3 * self.scores.abs() + 2 * added + 4 * scale * (q**2 @ k.mT**2).sqrt())
            of_dp += unit * self.dp.abs()
        # A probability is exactly 0, or NaN, where its score isn't finite.
        of_score = of_score.where(self.scores.isfinite(), 0.0)
        # exp(x + e) is about exp(x) * (1 + e), and so is the sum that it is divided by.
        of_p = self.p * (of_score + _norm(self.p * of_score) + 2.0**-20 + unit) + least
        total = (self.p * self.dp).abs().sum(-1, keepdim=True)
        of_delta = _norm(self.p * of_dp) + _norm(of_p * self.dp) + 2.0**-20 * total
        difference = (self.dp - (self.p * self.dp).sum(-1, keepdim=True)).abs()
        of_ds = of_p * difference + self.p * (of_dp + of_delta) + (1 + rounded) * unit * ds + least
        squares = of_ds**2
        return {
            "dq": scale * (4 * (squares @ k**2).sqrt() + 2.0**-20 * (ds @ k)),
            "dk": scale * (4 * (squares.mT @ q**2).sqrt() + 2.0**-20 * (ds.mT @ q)),
            "dv": 4 * (of_p.mT**2 @ dout**2).sqrt() + 2.0**-20 * (self.p.mT @ dout),
            "terms": of_ds,
        }


def _norm(values: torch.Tensor) -> torch.Tensor:
    """The root of the sum of squares of each row."""
    return values.square().sum(-1, keepdim=True).sqrt()


def added_to_scores(t: Tensors, windows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bias + mask of these windows (numbers), of a shape that broadcasts to (windows, H, T, T)."""
    added = t.q.new_zeros((1, 1, 1, 1), dtype=dtype)
    if len(t.bias):
        added = added + t.bias.to(dtype)
    if len(t.mask):
        added = added + t.mask.to(dtype)[windows % len(t.mask)][:, None]
    return added


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The op's outputs in float64."""
    exact = ExactAttentionGrad.of(t)
    return exact.gradients() | {"dbias": exact.ds.sum(0)[: len(t.bias)]}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """Each output must be as near to the reference as the roundings of the dtype and its sums allow."""
    import torch

    s, unit, least = ctx.s, _UNIT[ctx.case.dtype], _LEAST[ctx.case.dtype]
    rounded = ctx.case.variant not in _IN_FLOAT32
    shape = squares_of_heads(ctx.case.values)
    sums, squares, sizes = (torch.zeros(shape, dtype=torch.float64, device=ctx.device) for _ in range(3))

    def expected(name: str, want: torch.Tensor, allowed: torch.Tensor, first: int, got: torch.Tensor) -> Expected:
        # What is scaled after it was rounded is rounded twice.
        own = (1 + rounded) * unit * want.abs() + least
        return Expected(name, got, want, allowed + own, start=first)

    step = max(1, _CHECKED // (s.H * s.T * s.T))
    for first in range(0, s.W, step):
        part = slice(first, first + step)
        exact = ExactAttentionGrad.of(t.before, part)
        allowed = exact.allowances(unit, least, rounded)
        for name, want in exact.gradients().items():
            yield expected(name, want, allowed[name], first * s.H * s.T * s.D, getattr(t, name)[part])
        if len(sums):
            sums += exact.ds.sum(0)
            squares += allowed["terms"].square().sum(0)
            sizes += exact.ds.abs().sum(0)
    yield expected("dbias", sums, 4 * squares.sqrt() + 2.0**-20 * sizes, 0, t.dbias)


# ---- What torch runs.


def saved(ctx: Context, t: Tensors) -> dict[str, Any]:
    """What autograd keeps of matmul, additions, softmax and matmul: P, and q as it was scaled, as Swin does it."""
    import torch

    scaled = t.q * ctx.s.D**-0.5
    scores = scaled @ t.k.mT
    if len(t.bias):
        scores = scores + t.bias
    if len(t.mask):
        by_image = scores.view(ctx.s.W // ctx.s.G, ctx.s.G, *scores.shape[1:]) + t.mask[:, None]
        scores = by_image.view_as(scores)
    return {"p": torch.softmax(scores, -1), "scaled": scaled}


def backward(dout: torch.Tensor, kept: tuple[torch.Tensor, ...], has_bias: bool) -> tuple[torch.Tensor, ...]:
    """Run what autograd runs. kept: what it has of the forward: scaled q, k, v and P."""
    import torch

    scaled, k, v, p = kept
    dp, dv = dout @ v.mT, p.mT @ dout
    ds = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
    dbias = ds.sum(0) if has_bias else ds.new_empty((0, *ds.shape[2:]))
    return ds @ k * k.shape[-1] ** -0.5, ds.mT @ scaled, dv, dbias


def sizes(s: Symbols, itemsize: int) -> tuple[int, int]:
    """Bytes of a matrix such as q, and of a square such as P, of all windows and heads."""
    heads = s["W"] * s["H"] * s["T"] * itemsize
    return heads * s["D"], heads * s["T"]


def by_products(scalings: int) -> Any:
    """The traffic of four products, of softmax's backward and of a sum, with P read; scalings: of dq, apart."""

    def traffic(s: Symbols, itemsize: int) -> Traffic:
        matrix, square = sizes(s, itemsize)
        has_bias = s["bias"] == "yes"
        return Traffic(
            read=(5 + scalings) * matrix + (5 + has_bias) * square,
            written=(3 + scalings) * matrix + 2 * square + has_bias * s["H"] * s["T"] ** 2 * itemsize,
        )

    return traffic


def with_squares(out: int) -> Any:
    """The traffic of one kernel that writes dS of every window, for a sum apart. out: reads of out, and dout again."""

    def traffic(s: Symbols, itemsize: int) -> Traffic:
        matrix, square = sizes(s, itemsize)
        has_bias = s["bias"] == "yes"
        dtype = next(name for name in HALVES if ITEMSIZE[name] == itemsize)
        added = sum(tensor.bytes(s, dtype) for tensor in INPUTS[4:])
        dbias = OUTPUTS[3].bytes(s, dtype)
        return Traffic((4 + 2 * out) * matrix + added + has_bias * square, 3 * matrix + has_bias * square + dbias)

    return traffic


def whole_bias(ctx: Context, t: Tensors) -> torch.Tensor | None:
    """Bias + mask (W, H, T, T) as torch's attention takes them; None where there is neither. Rows lie 32 bytes apart.

    torch's kernel wants aligned rows, and makes such a copy itself where it doesn't get them.
    """
    import torch

    s = ctx.s
    if not len(t.bias) and not len(t.mask):
        return None
    windows = torch.arange(s.W if len(t.mask) else min(s.W, 1), device=ctx.device)
    added = added_to_scores(t, windows, ctx.dtype)
    rows = torch.zeros((*added.shape[:-1], -(-s.T // 16) * 16), dtype=ctx.dtype, device=ctx.device)
    rows[..., : s.T] = added
    return rows[..., : s.T].expand(s.W, s.H, s.T, s.T)
