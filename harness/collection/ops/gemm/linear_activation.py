"""A linear layer and its activation, y = activation(x w^T + bias): row S18. Twin of linear_activation.cu.

x is (M, K), the weight (N, K) as nn.Linear has it: the first layer of a transformer's MLP. GELU is the formula with a
hyperbolic tangent, torch's approximate='tanh', in all variants, since it is the only one that cuBLASLt has. Products
of float32 are not rounded to TF32, which is torch's default too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.gemm import _linear
from harness.collection.ops.gemm._linear import fused, separate_traffic, without_epilogue
from harness.collection.ops.gemm._products import EXTREMES, expected, needs
from harness.cuda.cublaslt import MANY, Activation, Gemm
from harness.model import Case
from harness.ops import Choice, Compile, Context, Expected, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_NUMBERS = {"relu": 1, "gelu": 2}
"""The activations, as linear_activation.cu numbers them."""
_STEEPEST = 1.13
"""The largest slope of GELU: so much larger may an error be behind it."""
_OF_TANH = 2.0**-11
"""The error of the GPU's instruction for tanh (PTX ISA, tanh.approx.f32), which cuBLASLt may use in its epilogue."""


def _activated(s: Any, value: torch.Tensor) -> torch.Tensor:
    """The activation, as a user calls it."""
    import torch

    functional = torch.nn.functional
    return functional.relu(value) if s.activation == "relu" else functional.gelu(value, approximate="tanh")


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What y must be, from a product in higher precision.

    Before the activation the errors of a linear layer are allowed. ReLU makes no error, nor an error larger. GELU makes
    it up to 1.13 times as large; its tanh and the result have errors of their own.
    """
    import torch

    unit = float(torch.finfo(t.y.dtype).eps)
    for part in expected("y", t.y, t.before.x, t.before.weight, t.before.bias):
        sums, want = part.want, _activated(ctx.s, part.want)
        allowed = part.allowed
        if ctx.s.activation == "gelu" and allowed is not None:
            allowed = allowed * _STEEPEST + want.abs() * unit + sums.abs() * (_OF_TANH / 2)
        yield replace(part, want=want, allowed=allowed)


OP = Op(
    "linear_activation",
    "y = activation(x w^T + bias), a linear layer and what follows it",
    symbols={"M": "rows of x", "K": "columns of x", "N": "columns of y, one bias each"},
    choices={"activation": Choice("the activation; gelu is the formula with tanh", ("gelu", "relu"))},
    inputs=(Tensor("x", ("M", "K")), Tensor("weight", ("N", "K")), Tensor("bias", ("N",))),
    outputs=(Tensor("y", ("M", "N")),),
    check=check,
    extremes=EXTREMES,
    flops={"case": "2 * M * N * K"},
)


def _by_torch(s: Any) -> Any:
    """The function that a user writes."""
    import torch

    return lambda x, weight, bias: _activated(s, torch.nn.functional.linear(x, weight, bias))


@OP.variant(
    "eager",
    "F.linear, then F.gelu or F.relu",
    role="baseline",
    rows=("S18",),
    devices=ANY,
    returns=True,
    traffic=separate_traffic,
)
def eager(ctx: Context) -> Launch:
    """What models do: for halves the bias is in the product's epilogue, and the activation is a kernel of its own."""
    function = _by_torch(ctx.s)
    return lambda t: (function(t.x, t.weight, t.bias),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """The second mode also tries products that Inductor writes in Triton, with the activation in them."""
    function = compiled(_by_torch(ctx.s))
    return lambda t: (function(t.x, t.weight, t.bias),)


@OP.variant(
    "addmm_activation",
    "torch._addmm_activation, which asks cuBLASLt for the same epilogue",
    role="baseline",
    rows=("S18",),
    returns=True,
)
def addmm_activation(ctx: Context) -> Launch:
    """Torch's own way to the epilogue, which has no public name. On a CPU its GELU is another one, by erf."""
    import torch

    use_gelu = ctx.s.activation == "gelu"
    return lambda t: (torch._addmm_activation(t.bias, t.x, t.weight.t(), use_gelu=use_gelu),)


def _product(case: Case) -> Gemm:
    activation: Activation = "relu" if case.values["activation"] == "relu" else "gelu"
    return _linear.product(case, activation=activation)


@OP.variant(
    "separate",
    "cuBLASLt's product, then a kernel of ours that adds the bias and applies the activation",
    role="published",
    rows=("S18",),
    traffic=separate_traffic,
    unsupported=needs(without_epilogue),
)
def separate(ctx: Context) -> Launch:
    """The text before, and its way where no epilogue does it: into the next element-wise kernel."""
    return _linear.separate(ctx, "activate", {"ACTIVATION": _NUMBERS[ctx.s.activation]})


@OP.variant(
    "epilogue",
    "cuBLASLt's product, which adds the bias and applies the activation before it writes y",
    role="published",
    rows=("S18",),
    unsupported=needs(_product),
)
def epilogue(ctx: Context) -> Launch:
    """The text after: the first algorithm that cuBLASLt proposes, as a library takes it."""
    return fused(ctx, _product(ctx.case))


@OP.variant(
    "tuned",
    f"as epilogue, by the fastest of the {MANY} algorithms that cuBLASLt proposes",
    rows=("S18",),
    unsupported=needs(_product),
)
def tuned(ctx: Context) -> Launch:
    """The algorithms are timed at the first call, before the case is timed."""
    return fused(ctx, _product(ctx.case), MANY)
