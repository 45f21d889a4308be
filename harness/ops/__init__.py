"""What an op is, and all that a plug-in needs to bring one.

An **op** is a data sheet: sizes (symbols), choices, tensors in and out, and what is right. A **variant** is one way of
doing the op: `OP.variant(...)` decorates a function `prepare(ctx: Context) -> launch`. `prepare` does what isn't timed
(compile a kernel, compute its grid). `launch(t)` is timed; `t` has the declared tensors as attributes (`t.x`, `t.y`; a
list where the declaration gives several shapes). A variant writes into the declared outputs, as kernels do. With
`returns=True` a variant makes its outputs itself, as torch does, and returns them as a tuple in the declared order.

    from harness.ops import Op, Tensor, compiled_variants

    OP = Op(
        "twice",
        "y = 2x",
        symbols={"N": "elements"},
        inputs=(Tensor("x", ("N",)),),
        outputs=(Tensor("y", ("N",)),),
        reference=lambda ctx, t: {"y": t.x.double() * 2},
    )

    @OP.variant("eager", "torch", role="baseline", returns=True)
    def eager(ctx):
        return lambda t: (t.x * 2,)

- `harness check --ops mine.py` checks the variants, and times nothing. An installed package names its module in the
  entry point group `harness.ops`, and needs no `--ops`.
- `find("softmax").variant(...)` adds a variant to an op that is there, a bundled one too.
- `compiled_variants(OP, summary)` adds the variants of torch.compile.
- `ctx.kernel("mine.cu", "entry", macros)` compiles a kernel that lies beside the file.
- Outputs must have the declared dtype and shape, lie on the case's device, and have memory of their own. Inputs must
  stay as they are, unless they are declared with `inplace=True`. A case that breaks this is wrong and has no time.
- `reference` gives what is right, in higher precision; `tolerance` says how far an output may be from `reference`, per
  dtype. An op whose outputs have no one right value has a `check`, which compares as it likes, with `complaint` and
  `Expected`. An op with neither has to say why: `unchecked="..."`.
- Inputs are also given extreme values, such as rows of NaN, of the lowest number and of zeros, whose results must be
  the reference's. `extremes=Extremes(exempt={"nan": "why"})` says which values an input can't have. An op that makes
  its inputs itself has no extreme values, unless it gives `extremes`.
- `tuning=Tuning(parameters=..., rule=...)` declares the plans of a variant, `ctx.plan()` gives the one to take.
  `harness tune` searches plans, and writes a table that `ctx.plan()` looks into.
- A declaration that can't be meant is a UsageError with its file, its line, and what is allowed.

Listing ops stays instant: the file of an op doesn't import torch at its top; its functions do, when they run.

In the collection, `harness/collection/ops/<family>/<op>.py` defines `OP`, and `kernels/<family>/<op>.cu` has its
kernels. Code that ops of a family share lies beside them, in files that start with `_`.
"""

from __future__ import annotations

from harness.model import Case, Traffic, Work
from harness.ops.baselines import MODES, Compile, compiled, compiled_variants
from harness.ops.catalogue import Catalogue, find
from harness.ops.comparer import Expected, complaint
from harness.ops.declarations import ANY_DEVICE
from harness.ops.extremes import Extremes
from harness.ops.sheet import Context, Op
from harness.ops.tensors import FLOATS, ITEMSIZE, Choice, Shape, Symbols, Tensor
from harness.ops.tuning import Built, Tuning
from harness.ops.variant import Launch, Role, Tensors, Variant
from harness.plans import Plan

__all__ = [
    "ANY_DEVICE",
    "FLOATS",
    "ITEMSIZE",
    "MODES",
    "Built",
    "Case",
    "Catalogue",
    "Choice",
    "Compile",
    "Context",
    "Expected",
    "Extremes",
    "Launch",
    "Op",
    "Plan",
    "Role",
    "Shape",
    "Symbols",
    "Tensor",
    "Tensors",
    "Traffic",
    "Tuning",
    "Variant",
    "Work",
    "compiled",
    "compiled_variants",
    "complaint",
    "find",
]
