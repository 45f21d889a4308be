"""Attention whose forward rotates queries and keys by a function `apply_rotary_pos_emb`, as transformers' decoders do.

The function is a name in the file of the model, and every model of that file uses it. So the forward of the patched
model's attention becomes a copy that reads another name, which stands for our rope; other models and the function stay
as they are. The copy is made through decorators around the forward. The other name stays in the file after `undo`,
where nobody reads it.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from harness.collection.nn import _kernels
from harness.collection.nn._patched_modules import CLOSE, Found, swap, untouchable
from harness.collection.nn._rope import rope

_NAME = "apply_rotary_pos_emb"
_OURS = f"_harness_{_NAME}"
_DECORATORS = 8
"""The most decorators around a forward that are looked through; functions may hold each other in a circle."""
_FREQUENCIES = "inv_freq"
"""The buffer of a module that gives cosines and sines."""


def rotary(model: nn.Module) -> Iterator[Found]:
    """Swap the attention modules whose forward uses the function; say why others stay."""
    angles: tuple[str, set[int]] | None = None
    for name, module in list(model.named_modules()):
        kind: Any = type(module)
        given = _used(kind.forward)
        if given is None:
            continue
        if angles is None:
            angles = _angles(model)
        was = f"{kind.__name__} with {_NAME}"
        if why := untouchable(module) or _why_not(given) or angles[0] or _why_not_whole(module, angles[1]):
            yield name, was, why, None
        else:
            yield name, was, "nn.rope", swap(module, _with_ours(kind.forward))


# ---- The function.


def _used(forward: Any, deep: int = 0) -> Any:
    """The function that a forward, or what a decorator has around it, calls by the name; None if it calls none."""
    code = getattr(forward, "__code__", None)
    if code is None or deep > _DECORATORS:
        return None
    if _NAME in code.co_names and callable(found := forward.__globals__.get(_NAME)):
        return found
    return next((found for one in _inside(forward) if (found := _used(one, deep + 1)) is not None), None)


def _inside(forward: Any) -> Iterator[types.FunctionType]:
    """The functions that a decorator's function holds."""
    held = map(_held, forward.__closure__ or ())
    return (one for one in held if isinstance(one, types.FunctionType) and one is not forward)


def _held(cell: types.CellType) -> Any:
    """What a cell of a closure holds; None for an empty one."""
    return cell.cell_contents if cell != types.CellType() else None


@cache
def _with_ours(forward: Any) -> Any:
    """A copy of a forward, and of the decorators around it, that calls ours. Layers of one class share it."""
    code, cells = forward.__code__, forward.__closure__
    if _NAME in code.co_names and callable(given := forward.__globals__.get(_NAME)):
        forward.__globals__[_OURS] = _rotating(given)
        code = code.replace(co_names=tuple(_OURS if name == _NAME else name for name in code.co_names))
    else:
        copies = {one: _with_ours(one) for one in _inside(forward) if _used(one) is not None}
        pairs = ((cell, _held(cell)) for cell in cells)
        cells = tuple(
            types.CellType(copies[one]) if isinstance(one, types.FunctionType) and one in copies else cell
            for cell, one in pairs
        )
    made = types.FunctionType(code, forward.__globals__, forward.__name__, forward.__defaults__, cells)
    made.__kwdefaults__ = forward.__kwdefaults__
    made.__dict__.update(forward.__dict__)
    made.__qualname__, made.__module__, made.__doc__ = forward.__qualname__, forward.__module__, forward.__doc__
    made.__annotations__ = forward.__annotations__
    return made


@cache
def _rotating(given: Callable[..., Any]) -> Callable[..., Any]:
    """Ours where it does what the given function does, else the given function."""

    def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any) -> Any:
        dim = more.get("unsqueeze_dim", 1)
        if rest or more.keys() - {"unsqueeze_dim"} or not _fits(q, k, cos, sin, dim):
            return given(q, k, cos, sin, *rest, **more)
        if dim == 2:
            return rope(q, k, *_tables(q.shape[0], cos, sin))
        made = rope(q.transpose(1, 2), k.transpose(1, 2), *_tables(q.shape[0], cos, sin))
        return made[0].transpose(1, 2), made[1].transpose(1, 2)

    return rotated


def _fits(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, dim: Any) -> bool:
    """Whether ours gives the same. It rotates whole heads, and gives the type of q; under autocast that is enough.

    q, k: (B, heads, S, D) where dim is 1, (B, S, heads, D) where it is 2. cos, sin: (B or 1, S, D).
    """
    if dim not in (1, 2) or q.ndim != 4 or k.ndim != 4 or cos.ndim != 3 or cos.shape != sin.shape:
        return False
    batch, tokens = q.shape[0], q.shape[3 - dim]
    wider = torch.promote_types(q.dtype, cos.dtype) != q.dtype
    return (
        q.dtype == k.dtype
        and q.is_floating_point()
        and (k.shape[0], k.shape[3 - dim], k.shape[3]) == (batch, tokens, q.shape[3])
        and cos.shape[0] in (1, batch)
        and (cos.shape[1], cos.shape[2]) == (tokens, q.shape[3])
        and q.shape[3] % 2 == 0
        and not (cos.requires_grad or sin.requires_grad)
        and (not wider or torch.is_autocast_enabled(q.device.type))
    )


class _Tables:
    """Angles as the kernel takes them, made once for all layers of a forward, which are given the same tensors.

    Without that each layer would launch a handful of small kernels more. A graph that is captured, and what a compiler
    traces, gets tables of its own.
    """

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = ()

    def __call__(self, batch: int, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The tables (P, D / 2) and the position of each token. cos, sin: (B or 1, S, D)."""
        if torch.compiler.is_compiling() or _kernels.capturing() or torch.is_inference_mode_enabled():
            return cos, sin, None
        if cos.is_inference() or sin.is_inference():  # which have no version
            return cos, sin, None
        stream = _kernels._STREAM(cos.device.index) if cos.is_cuda else 0
        known = batch, cos._version, sin._version, stream
        last = self._last
        if last and last[0]() is cos and last[1]() is sin and last[2] == known:
            return cast("tuple[Tensor, Tensor, Tensor]", last[3])
        half, rows = cos.shape[2] // 2, cos.shape[0] * cos.shape[1]
        first, second = (one[..., :half].reshape(-1, half).float().contiguous() for one in (cos, sin))
        positions = torch.arange(batch * cos.shape[1], device=cos.device) % rows
        tables = first, second, positions
        self._last = weakref.ref(cos), weakref.ref(sin), known, tables
        return tables


_tables = _Tables()


# ---- Whether ours computes the same.


@cache
def _why_not(given: Callable[..., Any]) -> str:
    """Why a function isn't ours, by a try with random numbers; '' if it is."""
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(2, heads, 5, 8, generator=generator) for heads in (3, 1))
    cos, sin = (torch.randn(2, 5, 4, generator=generator).repeat(1, 1, 2) for _ in range(2))
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            got = given(q, k, cos, sin)
            want = _rotating(given)(q, k, cos, sin)
        alike = [one.shape == other.shape and torch.allclose(one, other, CLOSE, CLOSE) for one, other in zip(got, want)]  # noqa: B905
    except Exception as error:  # whatever somebody else's function wants, it isn't what ours takes
        return f"its rotary embedding can't be tried: {type(error).__name__}"
    return "" if alike == [True, True] else "its rotary embedding computes something else"


def _angles(model: nn.Module) -> tuple[str, set[int]]:
    """Why the angles of a model aren't ours, whose second half repeats the first one; '' if they are. And their widths.

    Angles come from modules with frequencies, which take a tensor for its type, and positions (B, S).
    """
    sources = [module for module in model.modules() if isinstance(getattr(module, _FREQUENCIES, None), Tensor)]
    widths = set[int]()
    for source in sources:
        try:
            tried: Any = copy.deepcopy(source)  # which may keep the longest sequence that it has seen
            device = getattr(tried, _FREQUENCIES).device
            with torch.no_grad():
                made = tried(torch.zeros(1, 4, 8, device=device), torch.arange(1, 5, device=device)[None])
            if not all(torch.equal(*one.chunk(2, -1)) for one in made):
                return "its angles don't repeat in the second half", widths
            widths.add(made[0].shape[-1])
        except Exception as error:  # whatever somebody else's forward wants, it isn't what transformers' take
            return f"its angles can't be tried: {type(error).__name__}", widths
    return "" if sources else f"no module has {_FREQUENCIES}, so its angles can't be tried", widths


def _why_not_whole(module: Any, widths: set[int]) -> str:
    """Why a module doesn't rotate whole heads, where it tells how wide they are; '' if it does."""
    width = getattr(module, "head_dim", None)
    if width is None or width in widths:
        return ""
    return f"it rotates {' or '.join(map(str, sorted(widths)))} of a head's {width} elements, ours all of them"
