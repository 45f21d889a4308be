"""An op that doubles numbers in plain torch: in one pass over the data, or in two."""

from __future__ import annotations

from harness.ops import Context, Launch, Op, Tensor, Tensors

OP = Op(
    "doubled",
    "y = 2 x",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    dtypes=("float32",),
    reference=lambda _, t: {"y": 2 * t.x.double()},
)


@OP.variant("eager", "a product", role="baseline", devices=("any",), returns=True)
def eager(_: Context) -> Launch:
    def launch(t: Tensors) -> object:
        return (t.x * 2,)

    return launch


@OP.variant("twice", "a product, then another one", devices=("simulated",), returns=True)
def twice(_: Context) -> Launch:
    def launch(t: Tensors) -> object:
        return ((t.x * 4) * 0.5,)

    return launch
