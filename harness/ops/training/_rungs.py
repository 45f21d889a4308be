"""The rungs of a ladder: what each of them does differently in a training step. This file needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from harness.ops.sheet import Role

Half = Literal["none", "mixed", "pure"]


@dataclass(frozen=True, slots=True)
class Rung:
    """One way of doing a training step.

    tf32: whether products and convolutions of float32 may be rounded to TF32. half: 'mixed' for autocast with a scaled
    loss, 'pure' for a model in halves, whose optimizer has master weights in float32. loop: whether gradients are
    unscaled by one call each. fused: whether the optimizer is torch's fused one. sdpa: whether attention is torch's
    scaled_dot_product_attention. graph: whether a CUDA graph of the whole step is replayed. compiled: whether
    torch.compile compiles the model.
    """

    name: str
    summary: str
    rows: tuple[str, ...] = ()
    role: Role = "baseline"
    tf32: bool = True
    half: Half = "mixed"
    loop: bool = False
    fused: bool = False
    sdpa: bool = False
    graph: bool = False
    compiled: bool = False


FLOAT32 = Rung("float32", "all in float32, without TF32; the optimizer's foreach calls", tf32=False, half="none")
TF32 = Rung("tf32", "products and convolutions of float32 in TF32", half="none")
AMP = Rung("amp", "mixed precision: autocast, and a scaled loss with torch's foreach unscaling", ("O2", "S2"))
UNSCALE_LOOP = replace(
    AMP, name="unscale_loop", summary="beside amp: one call of unscaling a gradient", rows=("P1",), loop=True
)
FUSED = replace(AMP, name="fused_optimizer", summary="torch's fused optimizer, which unscales too", rows=(), fused=True)
SDPA = replace(FUSED, name="sdpa", summary="attention by scaled_dot_product_attention", sdpa=True)


def above(rung: Rung) -> tuple[Rung, ...]:
    """What goes on from the highest rung of eager torch: a graph of the step; and beside it torch.compile and halves.

    In pure halves nothing is cast in each step: the model has halves, and the optimizer the float32 weights.
    """
    return (
        replace(rung, name="graph", summary="a CUDA graph of the whole step", rows=("S8",), graph=True),
        replace(rung, name="compile", summary="beside graph: torch.compile of the model", compiled=True),
        replace(
            rung, name="half", summary="beside graph: pure halves, master weights in float32", rows=("S8",), half="pure"
        ),
    )


WITH_ATTENTION = (FLOAT32, TF32, AMP, UNSCALE_LOOP, FUSED, SDPA, *above(SDPA))
"""The rungs of a model that has attention."""
WITHOUT_ATTENTION = (FLOAT32, TF32, AMP, UNSCALE_LOOP, FUSED, *above(FUSED))
