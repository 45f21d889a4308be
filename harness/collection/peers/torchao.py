"""Functions of torchao, by PyTorch: floats as integers, and products of integers. As in version 0.18.

They are made of torch's operators, and written for torch.compile, which fuses them.
"""

from __future__ import annotations

from typing import Any

from harness.collection.ops.gemm import int8_linear
from harness.collection.ops.quantise import quantize
from harness.collection.ops.quantise._integers import HIGHEST, LOWEST
from harness.collection.peers._library import PeerLibrary
from harness.model import Case
from harness.ops import Context, Launch, compiled

LIBRARY = PeerLibrary("torchao", "torchao", "torchao>=0.17")
_FEWEST_ROWS, _MULTIPLE = 17, 8  # what torch's product of integers takes on a GPU, which torchao calls


def _too_odd(case: Case) -> str | None:
    """Why torchao's product can't be taken: it would go through the CPU, or fail."""
    if reason := LIBRARY.obstacle()(case):
        return reason
    s = case.symbols
    if s["M"] < _FEWEST_ROWS or s["K"] % _MULTIPLE or s["N"] % _MULTIPLE:
        return f"torchao's product on a GPU needs {_FEWEST_ROWS} rows, and K and N that are multiples of {_MULTIPLE}"
    return None


@int8_linear.OP.variant(
    "torchao",
    "torchao's int_scaled_matmul, then the weight's scales, compiled",
    role="peer",
    returns=True,
    unsupported=_too_odd,
)
def int8_linear_torchao(_: Context) -> Launch:
    """One scale of x stands for each row. Sums times scales may leave float16's range, so both are in float32."""
    from torchao.kernel import int_scaled_matmul

    def product(x: Any, weight: Any, x_scale: Any, weight_scale: Any) -> Any:
        return (int_scaled_matmul(x, weight.t(), x_scale.unsqueeze(1)) * weight_scale).half()

    function = compiled(product)
    return lambda t: (function(t.x, t.weight, t.x_scale, t.weight_scale),)


@quantize.OP.variant(
    "torchao",
    "torchao's quantize_affine with a zero point of 0, compiled",
    role="peer",
    returns=True,
    unsupported=LIBRARY.obstacle(row="C"),
)
def quantize_torchao(ctx: Context) -> Launch:
    """A block is what shares a scale: all numbers, or a column."""
    import torch
    from torchao.quantization.quant_primitives import quantize_affine

    s = ctx.s
    block = (s.M, s.C if s.scales == "tensor" else 1)
    zero_point = torch.zeros(1 if s.scales == "tensor" else s.C, dtype=torch.int32, device=ctx.device)

    def integers(x: Any, scale: Any, zero_point: Any) -> Any:
        return quantize_affine(x, block, scale, zero_point, torch.int8, LOWEST, HIGHEST)

    function = compiled(integers)
    return lambda t: (function(t.x, t.scale, zero_point),)
