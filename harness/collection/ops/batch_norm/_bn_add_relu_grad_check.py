"""What bn_add_relu_grad must give: its inputs, its reference in float64, and how far off each output may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.batch_norm._batch_norm import EPSILON, image_shape
from harness.ops import MODES, Context, Expected, Tensors

if TYPE_CHECKING:
    import torch

_SUM_ERROR = 2.0**-16
"""Error allowed of a sum, as a share of the root of the sum of its terms' squares.

Chains of k additions in float32 err by about 0.2 * sqrt(k) * 2**-24 of that root. Signs are random, so the sum itself
is about as large as the root, and a part left out would be missed by the root of its share: 5e-3 for 4096 elements of
2**27.
"""
_TERM_ERROR = 2.0**-18
"""Error allowed of dx, as a share of the terms that it is the sum of: some roundings of each in float32."""
_LEAST = 2.0**-126
"""Error allowed of a float: below this number it has fewer places."""
_TORCH = ("eager", *MODES)


def make(ctx: Context) -> dict[str, Any]:
    """An x whose channels have means of their own, its true statistics, and y as a ReLU leaves it: half of it zeros."""
    import torch

    def normal(*shape: int, dtype: torch.dtype = ctx.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=dtype)

    shape, channels = image_shape(ctx.case.values), ctx.s.C
    dy, y, x = normal(*shape), normal(*shape).relu_(), normal(*shape).add_(normal(1, channels, 1))
    variance, mean = torch.var_mean(x.double(), (0, 2), correction=0)
    gamma = torch.rand(channels, generator=ctx.generator, device=ctx.device) + 0.5
    invstd = (variance + EPSILON).rsqrt()
    return {"dy": dy, "x": x, "y": y, "gamma": gamma, "mean": mean.float(), "invstd": invstd.float()}


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """All outputs in float64."""
    dz, normalized = _terms(t)
    dbeta, dgamma = dz.sum((0, 2)), (dz * normalized).sum((0, 2))
    centred = dz - _spread(dbeta) / _samples(dz) - normalized * _spread(dgamma) / _samples(dz)
    return {"dx": _spread(t.gamma * t.invstd.double()) * centred, "dz": dz, "dgamma": dgamma, "dbeta": dbeta}


def _terms(t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """(dz, normalised x) in float64."""
    return t.dy.where(t.y > 0, 0).double(), (t.x.double() - _spread(t.mean)) * _spread(t.invstd)


def _spread(of_channels: torch.Tensor) -> torch.Tensor:
    """A vector (C) as (1, C, 1), in float64."""
    return of_channels.double().view(1, -1, 1)


def _samples(tensor: torch.Tensor) -> int:
    """Elements of a channel."""
    return int(tensor.shape[0] * tensor.shape[2])


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What each output must be: dz exactly, since it is a selection; sums and dx as near as their terms allow.

    dx is the sum of three terms that may be larger than itself. It may be off by a unit in its last place, by what
    float32 makes of the terms, and by the errors of the two sums in them. An infinity in dy makes infinities or NaN of
    them, which depends on the order of the operations.
    """
    import torch

    before, wanted = t.before, reference(ctx, t.before)
    dz, normalized = _terms(before)
    samples, kind = _samples(dz), torch.finfo(ctx.dtype)
    # torch rounds the terms of dx and of the sums to the dtype for some shapes; on the CPU it rounds sums, too.
    rounding = 2 * kind.eps if ctx.case.variant in _TORCH else 0.0
    of_sum = _SUM_ERROR + rounding
    errors = {
        "dbeta": of_sum * torch.linalg.vector_norm(dz, dim=(0, 2)),
        "dgamma": of_sum * torch.linalg.vector_norm(dz * normalized, dim=(0, 2)),
    }
    of_x = _spread(before.invstd) * (before.x.double().abs() + _spread(before.mean).abs())
    terms = dz.abs() + (_spread(wanted["dbeta"]).abs() + of_x * _spread(wanted["dgamma"]).abs()) / samples
    of_sums = (_spread(errors["dbeta"]) + normalized.abs() * _spread(errors["dgamma"])) / samples
    of_terms = _spread(before.gamma * before.invstd).abs() * ((_TERM_ERROR + rounding) * terms + of_sums)
    of_dx = of_terms + kind.eps * wanted["dx"].abs() + kind.smallest_normal * kind.eps + _LEAST
    yield Expected("dx", t.dx, wanted["dx"], of_dx, loose=True)
    yield Expected("dz", t.dz, wanted["dz"])
    for name in ("dgamma", "dbeta"):
        allowed = errors[name] + (2.0**-23 + rounding) * wanted[name].abs()
        yield Expected(name, getattr(t, name), wanted[name], allowed, loose=True)
