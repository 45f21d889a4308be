"""The steps of `separate`, a kernel for each. Twin of steps.cuh.

Each step writes its result in the case's type, and the next one reads it. Two tensors are enough for what lies between
the first step and the last; all sets of buffers share them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import BLOCK, blocks
from harness.collection.ops.quantise import _tiles
from harness.model import Traffic
from harness.ops import ITEMSIZE, Context, Symbols

if TYPE_CHECKING:
    import torch

MOST_BLOCKS = 2**31 - 1
"""Blocks of a grid."""

CONVERSION = "float32 -> case"
"""What is left out where the case's type is float32."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The kernels of a case's steps, and room for two results between them."""

    ctx: Context

    def between(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two tensors of the case's shape and type."""
        import torch

        shape, options = (self.ctx.s.M, self.ctx.s.C), {"dtype": self.ctx.dtype, "device": self.ctx.device}
        return torch.empty(shape, **options), torch.empty(shape, **options)

    def step(self, name: str, *, columns: bool = True, scales: bool | None = None) -> Callable[..., None]:
        """The step `name`, called with its tensors. columns: whether it has numbers of columns.

        scales: whether it has a scale for each column; as the case's choice says unless told.
        """
        ctx = self.ctx
        options = _tiles.macros(ctx) | {"STEPS": 1}
        if scales is not None:
            options["CHANNEL"] = int(scales)
        kernel = ctx.kernel(f"{ctx.case.op}.cu", f"quantise_step_{name}", options)
        count = _tiles.elements(ctx)
        scalars: tuple[Any, ...] = _tiles.numbers(ctx, count)
        if columns:
            scalars += _tiles.divisor(ctx, ctx.s.C)
        return lambda *tensors: kernel(blocks(count), BLOCK, *tensors, *scalars)

    def layer_norm(self) -> Callable[..., None]:
        """LayerNorm of rows, called with x, gamma, beta and y."""
        ctx = self.ctx
        kernel = ctx.kernel(f"{ctx.case.op}.cu", "quantise_step_layer_norm", _tiles.macros(ctx) | {"STEPS": 1})
        return lambda *tensors: kernel(rows_grid(ctx), BLOCK, *tensors, *rows_and_columns(ctx))


def rows_grid(ctx: Context) -> int:
    """Blocks of a kernel that has a block a row."""
    return min(ctx.s.M, MOST_BLOCKS) if ctx.s.C else 0


def rows_and_columns(ctx: Context) -> tuple[Any, ...]:
    """Both sizes as kernels of rows take them."""
    return ctypes.c_int64(ctx.s.M), ctypes.c_int64(ctx.s.C)


def traffic(*kernels: str) -> Callable[[Symbols, int], Traffic]:
    """The traffic of kernels after each other, each as the types of an element that it reads and writes.

    "int32 case -> case" reads int32 and the case's type, and writes the case's type. Numbers of columns aren't counted.
    A conversion from float32 to float32 is none.
    """

    def moved(symbols: Symbols, itemsize: int) -> Traffic:
        sizes = ITEMSIZE | {"case": itemsize}
        count = symbols["M"] * symbols["C"]
        sides = [
            kernel.split("->") for kernel in kernels if not (kernel == CONVERSION and itemsize == sizes["float32"])
        ]
        read, written = (sum(sizes[name] for both in sides for name in both[side].split()) for side in (0, 1))
        return Traffic(read * count, written * count)

    return moved
