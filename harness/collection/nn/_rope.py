"""Rotary position embeddings of queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.collection.nn._kernels import Described, OpKernels, like
from harness.collection.nn._operators import operator, without_autocast
from harness.collection.nn._rows import _wide
from harness.collection.ops.llm.rope import OP as ROPE


def rope(  # noqa: PLR0913 - what rotates
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None, *, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Queries and keys with their pairs of elements rotated by their positions, in one launch.

    q: (..., Q, D), k: (..., K, D): tokens, heads, elements of a head, of one type. cos, sin: (P, D / 2), the angles of
    positions; or (..., P, D), as transformers has them, whose second halves repeat the first ones, also where pairs are
    interleaved. positions: (...), an integer for each token; without them, token t has position t modulo P.
    interleaved: whether neighbours are a pair, as in Meta's Llama, rather than the halves of a head, as in
    transformers. Angles have no gradient. The results have the type of q. Raises ValueError where shapes or types don't
    fit.

    >>> q, k = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 4.0]]])
    >>> nn.rope(q, k, cos=torch.tensor([[0.0]]), sin=torch.tensor([[1.0]]))
    (tensor([[[-2.,  1.]]]), tensor([[[-4.,  3.]]]))
    """
    _refuse(q, k, cos, sin)
    half = q.shape[-1] // 2
    cos, sin = (table[..., :half].reshape(-1, half).float() for table in (cos.detach(), sin.detach()))
    tokens = q.shape[:-2].numel()
    if positions is None:
        positions = torch.arange(tokens, device=q.device) % max(1, len(cos))
    elif positions.numel() != tokens:
        raise ValueError(f"positions are {tuple(positions.shape)}; q has {tokens} tokens: {tuple(q.shape[:-2])}")
    made: tuple[Tensor, Tensor] = _rope(
        q, k, cos.contiguous(), sin.contiguous(), positions.reshape(-1).long(), interleaved, False
    )
    return made


def _refuse(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    if q.ndim < 2 or q.shape[-1] % 2 or q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        shapes = f"q is {tuple(q.shape)}, k is {tuple(k.shape)}"
        raise ValueError(f"{shapes}; they must be (..., heads, D), alike but for the heads, and D must be even")
    if q.dtype != k.dtype or not q.dtype.is_floating_point:
        raise ValueError(f"q is of {q.dtype}, k of {k.dtype}; both must be of one floating-point type")
    if cos.shape != sin.shape or not cos.ndim or cos.shape[-1] not in (q.shape[-1], q.shape[-1] // 2):
        shapes = f"cos is {tuple(cos.shape)}, sin is {tuple(sin.shape)}"
        raise ValueError(f"{shapes}; both must be (P, {q.shape[-1] // 2}) or (..., P, {q.shape[-1]})")


def _described(q: Tensor, heads_of_k: int, positions: int, interleaved: bool, backward: bool) -> Described:
    sizes = {"T": q.shape[:-2].numel(), "Q": q.shape[-2], "K": heads_of_k, "D": q.shape[-1], "P": positions}
    pairs, way = "interleaved" if interleaved else "halves", "backward" if backward else "forward"
    return Described(sizes, {"pairs": pairs, "way": way})


_ropes = OpKernels(ROPE, _described)


def _run(  # noqa: PLR0913, PLR0917 - what rotates
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool, backward: bool
) -> tuple[Tensor, Tensor]:
    launch = _ropes(q, k.shape[-2], len(cos), interleaved, backward)
    if launch is None:
        return _by_torch(q, k, cos, sin, positions, interleaved, backward)
    q, k = q.contiguous(), k.contiguous()
    q_out, k_out = like(q), like(k)
    launch(q, k, cos, sin, positions, q_out, k_out)
    return q_out, k_out


@without_autocast
def _by_torch(  # noqa: PLR0913, PLR0917 - what rotates
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool, backward: bool
) -> tuple[Tensor, Tensor]:
    shape = (*q.shape[:-2], 1, q.shape[-1] // 2)
    cos, sin = cos[positions].view(shape), sin[positions].view(shape)
    sin = -sin if backward else sin

    def rotated(x: Tensor) -> Tensor:
        wide = _wide(x)
        first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, -1)
        made = first * cos - second * sin, second * cos + first * sin
        whole = torch.stack(made, -1).reshape(wide.shape) if interleaved else torch.cat(made, -1)
        return whole.to(x.dtype)

    return rotated(q), rotated(k)


def _fake(
    q: Tensor, k: Tensor, _cos: Tensor, _sin: Tensor, _positions: Tensor, _interleaved: bool, _backward: bool
) -> tuple[Tensor, Tensor]:
    return like(q), like(k)


def _saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, cos, sin, positions, ctx.interleaved, ctx.backwards = inputs
    ctx.shapes = [made.shape for made in output]
    ctx.save_for_backward(cos, sin, positions)


def _turned_back(rotate: Callable[..., Any], ctx: Any, dq: Tensor | None, dk: Tensor | None) -> tuple[Any, ...]:
    given = dq if dq is not None else dk
    dq, dk = (
        slope if slope is not None else given.new_zeros(shape)  # type: ignore[union-attr]
        for slope, shape in zip((dq, dk), ctx.shapes, strict=True)
    )
    # The opposite angles take a rotation back.
    return *rotate(dq, dk, *ctx.saved_tensors, ctx.interleaved, not ctx.backwards), *(None,) * 5


def _backward(ctx: Any, dq: Tensor | None, dk: Tensor | None) -> tuple[Any, ...]:
    return _turned_back(_rope, ctx, dq, dk)


def _backward_formula(ctx: Any, dq: Tensor | None, dk: Tensor | None) -> tuple[Any, ...]:
    return _turned_back(_by_torch, ctx, dq, dk)


_rope = operator(
    "rope",
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor positions, bool interleaved, bool backward)"
    " -> (Tensor, Tensor)",
    _run,
    _fake,
    _saves,
    _backward,
    slopes=2,
    formula=_by_torch,
    backward_formula=_backward_formula,
)
