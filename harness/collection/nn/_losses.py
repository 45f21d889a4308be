"""Cross-entropy, alone and behind a linear layer, and embeddings: what meets the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.nn._kernels import Described, OpKernels, allocator, like
from harness.collection.nn._operators import operator, without_autocast
from harness.collection.nn._rows import _wide
from harness.collection.ops.llm._cross_entropy import IGNORED
from harness.collection.ops.llm.cross_entropy import OP as CROSS_ENTROPY
from harness.collection.ops.llm.cross_entropy_grad import OP as CROSS_ENTROPY_GRAD
from harness.collection.ops.llm.cross_entropy_in_place import OP as CROSS_ENTROPY_IN_PLACE
from harness.collection.ops.llm.embedding_grad import NO_PADDING
from harness.collection.ops.llm.embedding_grad import OP as EMBEDDING_GRAD

# ---- Cross-entropy.


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The cross-entropy of logits (..., V) with targets (...), integers, as torch's cross_entropy of float32 logits.

    The loss is float32 (float64 for float64): no copy of the logits is made, whatever their type. Rows whose target is
    `ignore_index` don't count. Each ignore_index has kernels of its own. Torch computes other reductions than 'mean',
    and label smoothing, with the copies that it needs. Raises ValueError where targets don't fit.

    >>> nn.cross_entropy(torch.zeros(3, 4), targets=torch.tensor([0, 3, -100]))
    tensor(1.3863)
    """
    _refuse_others("logits", logits)
    if targets.shape != logits.shape[:-1]:
        found = f"targets are {tuple(targets.shape)}"
        raise ValueError(f"{found}; for logits of {tuple(logits.shape)} they must be {tuple(logits.shape[:-1])}")
    rows, flat = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long()
    if reduction != "mean" or label_smoothing:
        losses = functional.cross_entropy(
            _wide(rows), flat, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
        return losses.view(targets.shape) if reduction == "none" else losses
    made: Tensor = _cross_entropy(rows, flat, ignore_index)
    return made.view(())


def _refuse_others(name: str, x: Tensor) -> None:
    """Raise ValueError for what isn't a tensor of floating-point numbers with a dimension."""
    if not x.dtype.is_floating_point:
        raise ValueError(f"{name} is of {x.dtype}; cross-entropy takes floating-point numbers")
    if not x.ndim:
        raise ValueError(f"{name} has no dimension; cross-entropy takes rows")


def _of_logits(logits: Tensor, ignored: int) -> Described:
    macros: dict[str, str | int] = {} if ignored == IGNORED else {"IGNORED": ignored}
    return Described({"M": logits.shape[0], "V": logits.shape[1]}, macros=macros)


_forwards, _backwards = OpKernels(CROSS_ENTROPY, _of_logits), OpKernels(CROSS_ENTROPY_GRAD, _of_logits)
_in_places = OpKernels(CROSS_ENTROPY_IN_PLACE, _of_logits)


def _numbers(logits: Tensor, count: int) -> Tensor:
    """Room for numbers: float32, or float64 for float64."""
    return allocator(logits)((count,), (1,), torch.float64 if logits.dtype == torch.float64 else torch.float32)


def _forward_run(logits: Tensor, targets: Tensor, ignored: int) -> tuple[Tensor, Tensor, Tensor]:
    launch = _forwards(logits, ignored)
    if launch is None:
        return _forward_by_torch(logits, targets, ignored)
    logits = logits.contiguous()
    loss, lse, valid = _forward_fake(logits, targets, ignored)
    launch(logits, targets.contiguous(), loss, lse, valid)
    return loss, lse, valid


@without_autocast
def _forward_by_torch(logits: Tensor, targets: Tensor, ignored: int) -> tuple[Tensor, Tensor, Tensor]:
    wide = _wide(logits)
    loss = functional.cross_entropy(wide, targets, ignore_index=ignored)
    valid = (targets != ignored).sum().to(wide.dtype)
    return loss.view(1), torch.logsumexp(wide, 1), valid.view(1)


def _forward_fake(logits: Tensor, _targets: Tensor, _ignored: int) -> tuple[Tensor, Tensor, Tensor]:
    return _numbers(logits, 1), _numbers(logits, logits.shape[0]), _numbers(logits, 1)


def _backward_run(logits: Tensor, targets: Tensor, lse: Tensor, valid: Tensor, dloss: Tensor, ignored: int) -> Tensor:  # noqa: PLR0913, PLR0917 - what the gradient is made of
    launch = _backwards(logits, ignored)
    if launch is None:
        return _gradient(logits, targets, lse, dloss / valid, ignored)
    logits = logits.contiguous()
    dlogits = like(logits)
    launch(logits, targets.contiguous(), lse, valid, dloss.contiguous(), dlogits)
    return dlogits


@without_autocast
def _gradient(logits: Tensor, targets: Tensor, lse: Tensor, factor: Tensor, ignored: int) -> Tensor:
    counted = (targets != ignored)[:, None]
    share = (_wide(logits) - lse[:, None]).exp()
    places = targets.where(counted[:, 0], 0)[:, None]
    share = share.scatter_add(1, places, -torch.ones_like(places, dtype=share.dtype))
    return torch.where(counted, share * factor, 0.0).to(logits.dtype)


def _saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, targets, ctx.ignored = inputs
    ctx.save_for_backward(logits, targets, *output[1:])


def _backward(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
    return _cross_entropy_grad(*ctx.saved_tensors, dloss, ctx.ignored), None, None


@without_autocast
def _formula(logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
    return functional.cross_entropy(_wide(logits), targets, ignore_index=ignored).view(1)


def _backward_formula(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
    logits, targets, _, valid = ctx.saved_tensors
    lse = torch.logsumexp(_wide(logits), 1)
    return _gradient(logits, targets, lse, dloss / valid, ctx.ignored), None, None


_cross_entropy = operator(
    "cross_entropy",
    "(Tensor logits, Tensor targets, int ignored) -> (Tensor, Tensor, Tensor)",
    _forward_run,
    _forward_fake,
    _saves,
    _backward,
    formula=_formula,
    backward_formula=_backward_formula,
)
_cross_entropy_grad = operator(
    "cross_entropy_grad",
    "(Tensor logits, Tensor targets, Tensor lse, Tensor valid, Tensor dloss, int ignored) -> Tensor",
    _backward_run,
    lambda logits, *_: like(logits),
)


# ---- Cross-entropy behind a linear layer.


def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int = IGNORED, chunk: int | None = None
) -> Tensor:
    """The mean cross-entropy of the logits x @ weight.T, which never exist all at once.

    x: (..., H); weight: (V, H), of the type of x; targets: (...), integers. The loss is float32. The logits of `chunk`
    rows are made at a time, and become their own gradient, from which the gradients of x and weight are made at once:
    so the forward does the work of the backward, too. Without `chunk`, the logits of a chunk take about as much memory
    as x does, but a chunk has at least 1024 rows. The gradient of weight is added up in float32. Raises ValueError
    where shapes or types don't fit, RuntimeError for tensors on several devices.

    >>> nn.linear_cross_entropy(torch.ones(3, 2), weight=torch.ones(4, 2), targets=torch.tensor([0, 3, -100]))
    tensor(1.3863)
    """
    _refuse_others("x", x)
    if targets.shape != x.shape[:-1] or weight.ndim != 2 or weight.shape[1:] != x.shape[-1:]:
        shapes = f"x is {tuple(x.shape)}, weight is {tuple(weight.shape)}, targets are {tuple(targets.shape)}"
        raise ValueError(f"{shapes}; they must be (..., H), (V, H) and (...)")
    if weight.dtype != x.dtype or (chunk is not None and chunk < 1):
        found = f"x is of {x.dtype}, weight of {weight.dtype}, chunk is {chunk}"
        raise ValueError(f"{found}; both must be of one type, and a chunk has 1 or more rows")
    for name, other in (("weight", weight), ("targets", targets)):
        if other.device != x.device:
            found = f"{name} lies on {other.device}, other tensors on {x.device}"
            raise RuntimeError(f"linear_cross_entropy: {found}; move it there")
    rows = x.reshape(-1, x.shape[-1])
    if chunk is None:
        chunk = max(1024, len(rows) * x.shape[-1] // max(1, len(weight)))
    wanted = torch.is_grad_enabled()
    flags = wanted and x.requires_grad, wanted and weight.requires_grad
    made: Tensor = _linear_cross_entropy(rows, weight, targets.reshape(-1).long(), ignore_index, chunk, *flags)
    return made.view(())


@without_autocast
def _linear_run(  # noqa: PLR0913, PLR0917 - what the loss and its gradients are made of
    x: Tensor, weight: Tensor, targets: Tensor, ignored: int, chunk: int, of_x: bool, of_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    _, dx, dweight = _linear_fake(x, weight, targets, ignored, chunk, of_x, of_weight)
    valid, losses = (targets != ignored).sum().to(_wide(x[:0]).dtype).view(1), _numbers(x, len(x))
    parts = range(0, len(x), chunk)
    total = dweight if len(parts) <= 1 else torch.zeros_like(dweight, dtype=_wide(x[:0]).dtype)
    if not parts:
        total.zero_()
    for first in parts:
        part = slice(first, first + chunk)
        logits = x[part] @ weight.T
        _in_place(logits, targets[part], valid, losses[part], ignored)
        if of_x:
            torch.mm(logits, weight, out=dx[part])
        if of_weight and total is dweight:
            torch.mm(logits.T, x[part], out=dweight)
        elif of_weight:
            total.add_(logits.T @ x[part])
    if total is not dweight:
        dweight.copy_(total)
    return losses.sum().view(1) / valid, dx, dweight


def _in_place(logits: Tensor, targets: Tensor, valid: Tensor, losses: Tensor, ignored: int) -> None:
    """Write the losses of rows, and the gradient in place of the logits."""
    launch = _in_places(logits, ignored)
    if launch is not None:
        launch(logits, targets, valid, losses)
        return
    wide = _wide(logits)
    losses.copy_(functional.cross_entropy(wide, targets, ignore_index=ignored, reduction="none"))
    logits.copy_(_gradient(logits, targets, torch.logsumexp(wide, 1), 1 / valid, ignored))


def _linear_fake(
    x: Tensor, weight: Tensor, _targets: Tensor, _ignored: int, _chunk: int, of_x: bool, of_weight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x) if of_x else x.new_empty(0)
    return _numbers(x, 1), dx, torch.empty_like(weight) if of_weight else x.new_empty(0)


def _linear_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.flags = inputs[-2:]
    ctx.save_for_backward(*output[1:])


def _linear_backward(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
    made = [
        gradient * dloss.to(gradient.dtype) if flag else None
        for gradient, flag in zip(ctx.saved_tensors, ctx.flags, strict=True)
    ]
    return *made, *(None,) * 5


@without_autocast
def _linear_formula(x: Tensor, weight: Tensor, targets: Tensor, ignored: int, *_: Any) -> Tensor:
    return functional.cross_entropy(_wide(x @ weight.T), targets, ignore_index=ignored).view(1)


def _linear_backward_formula(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "linear_cross_entropy of harness.nn keeps no logits, so its gradients have none (create_graph): "
            "use nn.cross_entropy(x @ weight.T, targets) there"
        )
    return _linear_backward(ctx, dloss)


_linear_cross_entropy = operator(
    "linear_cross_entropy",
    "(Tensor x, Tensor weight, Tensor targets, int ignored, int chunk, bool of_x, bool of_weight)"
    " -> (Tensor, Tensor, Tensor)",
    _linear_run,
    _linear_fake,
    _linear_saves,
    _linear_backward,
    formula=_linear_formula,
    backward_formula=_linear_backward_formula,
)


# ---- Embeddings.


def embedding(ids: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight (V, H) by ids (...), integers, as torch's embedding: (..., H). Torch copies the rows.

    The gradient of weight is dense, and the sums in it are float32, in the order of the tokens: they repeat bit by bit.
    The row `padding_idx` has no gradient; each such index has kernels of its own. Raises ValueError where weight isn't
    (V, H), or has no such row.

    >>> nn.embedding(torch.tensor([1, 0]), weight=torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.]])
    """
    if weight.ndim != 2:
        raise ValueError(f"weight is {tuple(weight.shape)}; it must be (V, H)")
    padding = NO_PADDING if padding_idx is None else padding_idx
    if padding_idx is not None:
        if not -len(weight) <= padding_idx < len(weight):
            raise ValueError(f"padding_idx is {padding_idx}; weight has {len(weight)} rows")
        padding = padding_idx % len(weight)
    made: Tensor = _embedding(ids.long(), weight, padding)
    return made


def _embedded(dy: Tensor, vocabulary: int, padding: int) -> Described:
    sizes = {"T": dy.shape[0], "V": vocabulary, "H": dy.shape[1]}
    # The catalogue has kernels for the first row.
    macros: dict[str, str | int] = {} if padding in (NO_PADDING, 0) else {"PADDING": padding}
    return Described(sizes, {"padding": "none" if padding else "first"}, macros=macros)


_embedding_grads = OpKernels(EMBEDDING_GRAD, _embedded)


def _embedding_run(ids: Tensor, weight: Tensor, padding: int) -> Tensor:  # noqa: ARG001 - the gradient's
    return functional.embedding(ids, weight)


def _embedding_fake(ids: Tensor, weight: Tensor, _padding: int) -> Tensor:
    return weight.new_empty((*ids.shape, weight.shape[1]))


def _embedding_grad_run(dy: Tensor, ids: Tensor, vocabulary: int, padding: int) -> Tensor:
    launch = _embedding_grads(dy, vocabulary, padding)
    if launch is None:
        return torch.ops.aten.embedding_dense_backward(dy, ids, vocabulary, padding, False)
    dweight = _embedding_grad_fake(dy, ids, vocabulary, padding)
    launch(dy.contiguous(), ids.contiguous(), dweight)
    return dweight


def _embedding_grad_fake(dy: Tensor, _ids: Tensor, vocabulary: int, _padding: int) -> Tensor:
    return dy.new_empty((vocabulary, dy.shape[1]))


def _embedding_saves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives both
    ids, weight, ctx.padding = inputs
    ctx.vocabulary = len(weight)
    ctx.save_for_backward(ids)


def _embedding_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    (ids,) = ctx.saved_tensors
    rows = dy.reshape(-1, dy.shape[-1])
    return None, _embedding_grad(rows, ids.reshape(-1), ctx.vocabulary, ctx.padding), None


def _embedding_formula(ids: Tensor, weight: Tensor, padding: int) -> Tensor:
    return functional.embedding(ids, weight, None if padding == NO_PADDING else padding)


def _embedding_backward_formula(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    (ids,) = ctx.saved_tensors
    return None, torch.ops.aten.embedding_dense_backward(dy, ids, ctx.vocabulary, ctx.padding, False), None


_embedding = operator(
    "embedding",
    "(Tensor ids, Tensor weight, int padding) -> Tensor",
    _embedding_run,
    _embedding_fake,
    _embedding_saves,
    _embedding_backward,
    formula=_embedding_formula,
    backward_formula=_embedding_backward_formula,
)
_embedding_grad = operator(
    "embedding_grad",
    "(Tensor dy, Tensor ids, int vocabulary, int padding) -> Tensor",
    _embedding_grad_run,
    _embedding_grad_fake,
)
