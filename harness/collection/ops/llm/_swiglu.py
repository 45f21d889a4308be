"""What swiglu and its gradient share: layouts, declarations and launches. Twin of swiglu.cuh."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, INDEX_TYPE, LIMIT_32, PACK_BYTES, aligned, blocks
from harness.model import Case
from harness.ops import ITEMSIZE, Built, Choice, Context, Launch, Plan, Symbols, Tensors, Tuning

if TYPE_CHECKING:
    import torch

SYMBOLS = {"M": "rows (tokens)", "H": "columns of the result"}
LAYOUT = Choice(
    "whether gate and up are the halves of the rows of one tensor, or a tensor each", ("packed", "separate")
)
TOLERANCE = {"float32": (4e-6, 1e-7), "float16": (1e-3, 1e-6), "bfloat16": (8e-3, 1e-6)}
"""The tolerance of y: torch's exponential and ours lose about a millionth of float32 where gates are far below 0."""

_UNITS, _EVERY_UNITS = 1, (1, 2, 4)  # packs of each tensor that a thread of `tuned` has by the rule, or may have


def gate_shape(symbols: Symbols) -> tuple[int, ...]:
    """The shape of the tensor that has the gate: up lies behind it in each row if they are packed."""
    return symbols["M"], symbols["H"] * (2 if symbols["layout"] == "packed" else 1)


def up_shape(symbols: Symbols) -> tuple[int, ...]:
    """The shape of up: empty if it lies beside the gate."""
    return (0,) if symbols["layout"] == "packed" else (symbols["M"], symbols["H"])


def is_packed(ctx: Context) -> bool:
    """Whether gate and up are halves of the rows of one tensor."""
    return bool(ctx.s.layout == "packed")


def halves(ctx: Context, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up, (M, H) each: views."""
    if not is_packed(ctx):
        return gate, up
    first, second = gate.split(gate.shape[-1] // 2, dim=-1)
    return first, second


Arguments = Callable[[Tensors], tuple[Any, ...]]
"""Gives a kernel's tensors in the order of its parameters."""


def one_element(ctx: Context, tensors: Arguments) -> Launch:
    """One element of the result a thread, at any address."""
    elements = ctx.s.M * ctx.s.H
    kernel = _kernel(ctx, "fused")
    numbers = _numbers(ctx, elements, ctx.s.H)
    return lambda t: kernel(blocks(elements), BLOCK, *tensors(t), *numbers)


def in_packs(ctx: Context, tensors: Arguments) -> Launch:
    """Packs of 16 bytes; `one_element` where rows aren't whole packs or a tensor doesn't begin on 16 bytes."""
    fallback, size, plan = one_element(ctx, tensors), PACK_BYTES // ITEMSIZE[ctx.case.dtype], ctx.plan()
    if plan is None:
        return fallback
    packs, units = ctx.s.M * ctx.s.H // size, int(plan["units"])
    kernel = _kernel(ctx, "tuned", UNITS=units)
    numbers, grid = _numbers(ctx, packs, ctx.s.H // size), blocks(packs, BLOCK * units)

    def launch(t: Tensors) -> None:
        arguments = tensors(t)
        if aligned(*arguments):
            kernel(grid, BLOCK, *arguments, *numbers)
        else:
            fallback(t)

    return launch


def _rule(case: Case) -> Plan | None:
    """The plan where no table has one; None where rows aren't whole packs."""
    return None if case.symbols["H"] % (PACK_BYTES // ITEMSIZE[case.dtype]) else {"units": _UNITS}


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    yield Built(f"{case.op}.cu", f"{case.op}_tuned", {**_macros(case), "UNITS": int(plan["units"])}, BLOCK)


TUNING = Tuning(lambda _: {"units": _EVERY_UNITS}, _rule, kernels=_kernels)
"""What `tuned` of both ops declares."""


def _macros(case: Case) -> dict[str, str | int]:
    types = {"SCALAR": CUDA_TYPE[case.dtype], "INDEX": INDEX_TYPE[_bits(case)]}
    return {**types, "PACKED": int(case.values["layout"] == "packed")}


def _kernel(ctx: Context, entry: str, **macros: int) -> cuda.Kernel:
    op = ctx.case.op
    return ctx.kernel(f"{op}.cu", f"{op}_{entry}", {**_macros(ctx.case), **macros})


def _bits(case: Case) -> int:
    return 32 if math.prod(gate_shape(case.values)) < LIMIT_32 else 64


def _numbers(ctx: Context, count: int, columns: int) -> tuple[Any, ...]:
    """How many elements or packs there are, and the number of a row's, to divide by."""
    bits = _bits(ctx.case)
    kind = ctypes.c_uint32 if bits == 32 else ctypes.c_uint64
    return kind(count), kind(columns), *cuda.fast_divisor(max(1, columns), bits)
