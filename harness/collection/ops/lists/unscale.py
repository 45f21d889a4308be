"""Multiply a list of gradients by 1 / scale in place, and raise a flag if any was infinite or NaN: rows P1, P2.

Twin of unscale.cu. A gradient scaler does this before each step of mixed precision. The rules are the rules of
torch._amp_foreach_non_finite_check_and_unscale_: the product is made in float32 and rounded once; the gradient is
tested before it is multiplied; the flag is 1.0 if there is such an element, else it stays as it was.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY, CUDA_TYPE, blocks, widened
from harness.collection.ops.lists import _models
from harness.collection.ops.lists._tables import BLOCK, Tabled, packed, starts
from harness.model import Case
from harness.ops import FLOATS, Compile, Context, Extremes, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

    from harness import cuda

PACKS = 1
"""Packs of 16 bytes that a thread of `tuned` has in flight: one, with which a plain copy is fastest."""
TEXT_BLOCK = 1024
TEXT_ELEMENTS = 20
"""Elements that a thread of `fused` takes."""


def make(ctx: Context) -> dict[str, Any]:
    """Gradients, one element of which is infinite, and the scale -1.

    The calls of a measurement multiply the same gradients thousands of times. With -1 they keep their size, and the
    check still sees whether they were multiplied. It sees the flag, too, and the infinity stays where it is.
    """
    import torch

    shapes = _models.shapes(ctx.case.values)
    grads = [torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype) for shape in shapes]
    filled = [grad for grad in grads if grad.numel()]
    if filled:
        chosen = filled[_below(ctx, len(filled))].view(-1)
        chosen[_below(ctx, chosen.numel())] = float("inf")
    return {
        "grads": grads,
        "inv_scale": torch.full((1,), -1.0, device=ctx.device),
        "found_inf": torch.zeros(1, device=ctx.device),
    }


def _below(ctx: Context, limit: int) -> int:
    """A random number below a limit."""
    import torch

    return int(torch.randint(limit, (1,), generator=ctx.generator, device=ctx.device))


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The products before they are rounded; products of halves in float32, which is how torch defines them."""
    import torch

    finite = all(bool(grad.isfinite().all()) for grad in t.grads)
    wide = (widened(grad)[0] for grad in t.grads)
    scaled = [grad * t.inv_scale.to(grad.dtype).view(()) for grad in wide]
    return {"grads": scaled, "found_inf": t.found_inf if finite else torch.ones_like(t.found_inf)}


OP = Op(
    "unscale",
    "g *= inv_scale in place for all g of a list; found_inf = 1 if any element isn't finite",
    symbols=_models.SYMBOLS,
    defaults=_models.DEFAULTS,
    choices={"tensors": _models.choice()},
    inputs=(
        Tensor("grads", _models.shapes, inplace=True),
        Tensor("inv_scale", (1,), "float32"),
        Tensor("found_inf", (1,), "float32", inplace=True),
    ),
    make=make,
    extremes=Extremes(
        exempt={"inv_scale": "GradScaler gives it, a power of two", "found_inf": "a flag, 0 or 1"},
    ),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
)

_TORCH: dict[str, Any] = {"role": "baseline", "devices": ANY}


def _takes_no_bfloat16(case: Case) -> str | None:
    """Why torch can't; on a CPU it can."""
    is_so = case.dtype == "bfloat16" and case.device == "cuda"
    return "torch's call takes no bfloat16 on a GPU (2.11)" if is_so else None


_AMP: dict[str, Any] = {**_TORCH, "rows": ("P1",), "unsupported": _takes_no_bfloat16}


@OP.variant("eager", "torch's multi-tensor call for the whole list, as GradScaler makes it", **_AMP)
def eager(_: Context) -> Launch:
    """Some hundred tensors at a time are one launch: their addresses are arguments of the kernel."""
    import torch

    def launch(t: Tensors) -> None:
        torch._amp_foreach_non_finite_check_and_unscale_(t.grads, t.found_inf, t.inv_scale)

    return launch


@OP.variant("eager_loop", "the same call once for each tensor", **_AMP)
def eager_loop(_: Context) -> Launch:
    """Code that knows no lists does this."""
    import torch

    def launch(t: Tensors) -> None:
        for grad in t.grads:
            torch._amp_foreach_non_finite_check_and_unscale_([grad], t.found_inf, t.inv_scale)

    return launch


def _user(grads: list[torch.Tensor], inv_scale: torch.Tensor, found_inf: torch.Tensor) -> None:
    """What a user writes for the compiler, which can't look into the call of `eager`. Products are made in float32."""
    import torch

    wide = [grad.float() for grad in grads]
    finite = torch.stack([grad.isfinite().all() for grad in wide]).all()
    torch._foreach_copy_(grads, [grad * inv_scale for grad in wide])
    found_inf.masked_fill_(~finite, 1.0)


@compiled_variants(
    OP,
    "torch.compile of isfinite().all() and a product of each tensor",
    returns=False,
    unsupported=_models.too_long_to_compile,
)
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor reduces each tensor, and multiplies it in the same kernel where it can."""
    function = compiled(_user)
    return lambda t: function(t.grads, t.inv_scale, t.found_inf)


def _kernel(ctx: Context, entry: str) -> cuda.Kernel:
    return ctx.kernel("unscale.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype], "PACKS": PACKS})


@OP.variant("loop", "our kernel once for each tensor, one element a thread", role="published", rows=("P1",))
def loop(ctx: Context) -> Launch:
    """The text before."""
    kernel = _kernel(ctx, "unscale_loop")

    def launch(t: Tensors) -> None:
        for grad in t.grads:
            n = grad.numel()
            kernel(blocks(n, BLOCK), BLOCK, grad, t.inv_scale, t.found_inf, ctypes.c_int64(n))

    return launch


_FUSED = Tabled(partial(starts, a_block=TEXT_BLOCK * TEXT_ELEMENTS), ("grads",))


def _starts_bytes(case: Case) -> int:
    return (len(_models.shapes(case.values)) + 1) * 8


def _too_many(case: Case) -> str | None:
    from harness import cuda

    if case.device == "cuda" and _starts_bytes(case) > cuda.shared_memory():
        return f"its table of starts needs {_starts_bytes(case)} bytes of shared memory, more than a block can have"
    return None


@OP.variant(
    "fused",
    "one launch; each thread walks through the list, some 20 elements far, from a table of starts",
    role="published",
    rows=("P1", "P2"),
    encode=_FUSED.encode,
    unsupported=_too_many,
)
def fused(ctx: Context) -> Launch:
    """The text after, but its tables stay on the device from call to call."""
    kernel = _kernel(ctx, "unscale_fused")

    def launch(t: Tensors) -> None:
        table, tensors = _FUSED.current(ctx, t), len(t.grads)
        count, shared = ctypes.c_uint32(tensors), (tensors + 1) * 8
        kernel(table.blocks, TEXT_BLOCK, table.rows, t.inv_scale, t.found_inf, count, shared=shared)

    return launch


_TUNED = Tabled(partial(packed, packs=PACKS), ("grads",))


@OP.variant(
    "tuned",
    "one launch; pieces of equal size from a table, in packs of 16 bytes",
    rows=("P1", "P2"),
    encode=_TUNED.encode,
)
def tuned(ctx: Context) -> Launch:
    """No thread searches for its tensor, and each has its packs in flight at once."""
    kernel = _kernel(ctx, "unscale_tuned")

    def launch(t: Tensors) -> None:
        table = _TUNED.current(ctx, t)
        kernel(table.blocks, BLOCK, table.rows, t.inv_scale, t.found_inf, ctypes.c_uint32(table.whole))

    return launch
