"""Ops. An op is a data sheet of symbols, choices, tensors, a reference and variants, and is found by its file's name.

`harness/collection/ops/activation/prelu.py` defines `OP = Op("prelu", ...)` and adds variants with `@OP.variant(...)`.
A folder is a family of ops; the code that they share lies beside them, in files that start with `_`. The twin of an
op's file is the file with its kernels, here `kernels/activation/prelu.cu`.

A variant is a function `prepare(ctx: Context) -> launch`. It does what isn't timed (compile a kernel, compute its grid)
and returns `launch(t)`, which is timed. `t` has the declared tensors as attributes (`t.x`, `t.y`; a list where the
declaration gives several shapes). Our kernels write into the declared outputs; a variant with
`returns=True` makes its own outputs, as torch does, and returns them as a tuple in the declared order.

Outputs must have the declared dtype and shape, lie on the case's device, and have memory of their own. Inputs must stay
as they are, unless they are declared with `inplace=True`. A case that breaks this is wrong and has no time.
"""

from __future__ import annotations

from harness.ops.catalogue import Catalogue
from harness.ops.comparer import Expected
from harness.ops.sheet import (
    FLOATS,
    ITEMSIZE,
    Choice,
    Context,
    Launch,
    Op,
    Role,
    Symbols,
    Tensor,
    Tensors,
    Variant,
)

__all__ = [
    "FLOATS",
    "ITEMSIZE",
    "Catalogue",
    "Choice",
    "Context",
    "Expected",
    "Launch",
    "Op",
    "Role",
    "Symbols",
    "Tensor",
    "Tensors",
    "Variant",
]
