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

from harness.model import Case, Traffic, Work
from harness.ops.baselines import MODES, Compile, compiled, compiled_variants
from harness.ops.catalogue import Catalogue, find
from harness.ops.comparer import Expected, complaint
from harness.ops.sheet import Op
from harness.ops.tensors import FLOATS, ITEMSIZE, Choice, Shape, Symbols, Tensor
from harness.ops.variant import Context, Launch, Role, Tensors, Variant

__all__ = [
    "FLOATS",
    "ITEMSIZE",
    "MODES",
    "Case",
    "Catalogue",
    "Choice",
    "Compile",
    "Context",
    "Expected",
    "Launch",
    "Op",
    "Role",
    "Shape",
    "Symbols",
    "Tensor",
    "Tensors",
    "Traffic",
    "Variant",
    "Work",
    "compiled",
    "compiled_variants",
    "complaint",
    "find",
]
