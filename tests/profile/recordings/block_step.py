"""A step of two blocks with NVTX ranges, as a training step has them; small enough to record on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.ops import Context, Launch, Op, Tensor, Tensors
from harness.ranges import NvtxRange

if TYPE_CHECKING:
    import torch

BLOCKS = 2
RATE = -0.1


def reference(_: Context, t: Tensors) -> dict[str, object]:
    x = t.x.double()
    return {"step": RATE * x.sin().cos() * x.cos()}


OP = Op(
    "block_step",
    "what gradient descent adds to x, for the sum of sin(sin(x))",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("step", ("N",)),),
    dtypes=("float32",),
    reference=reference,
)


@OP.variant("eager", "autograd of torch", role="baseline", devices=("cuda", "cpu"), returns=True)
def eager(_: Context) -> Launch:
    import torch

    def call(t: Tensors) -> tuple[torch.Tensor]:
        x = t.x.detach().requires_grad_()
        with NvtxRange("forward"):
            y = x
            for block in range(BLOCKS):
                with NvtxRange(f"block {block}"):
                    y = y.sin()
        with NvtxRange("backward"):
            (gradient,) = torch.autograd.grad(y.sum(), x)
        with NvtxRange("optimizer"):
            return (RATE * gradient,)

    return call
