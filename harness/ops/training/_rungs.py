"""The rungs of a ladder: what each of them does differently in a training step. This file needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from harness.ops._baselines import MODES
from harness.ops.sheet import Role

Half = Literal["none", "mixed", "pure"]

DEFAULT, AUTOTUNE = MODES["compile"], MODES["compile_autotune"]


@dataclass(frozen=True, slots=True)
class Rung:
    """One way of doing a training step.

    tf32: whether products and convolutions of float32 may be rounded to TF32. half: 'mixed' for autocast with a scaled
    loss, 'pure' for a model in halves, whose optimizer has master weights in float32. loop: whether gradients are
    unscaled by one call each. fused: whether the optimizer is torch's fused one. sdpa: whether attention is torch's
    scaled_dot_product_attention. graph: whether a CUDA graph of the whole step is replayed. compiled: the mode in
    which torch.compile compiles the model, if it does.

    What is ours, from harness.nn: unscale (of gradients), adam, norm (and what is fused with it: residual and ReLU in a
    ResNet, dropout in BERT), windows (their partition and reverse), attention (over windows).
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
    compiled: str = ""
    unscale: bool = False
    adam: bool = False
    norm: bool = False
    windows: bool = False
    attention: bool = False


# ---- What torch has.

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
    name = rung.name
    return (
        replace(rung, name=f"{name}_graph", summary=f"{name} as a CUDA graph of the step", rows=("S8",), graph=True),
        replace(rung, name=f"{name}_half", summary=f"{name} in pure halves", rows=("S8",), half="pure"),
        replace(rung, name="compile", summary=f"{name} with torch.compile of the model", compiled=DEFAULT),
        replace(
            rung,
            name="compile_autotune",
            summary=f"{name} with torch.compile of the model; mode {AUTOTUNE}",
            compiled=AUTOTUNE,
        ),
    )


# ---- What is ours.

UNSCALE = replace(
    AMP, name="unscale", summary="beside amp: gradients unscaled by one kernel", rows=("P1",), role="ours", unscale=True
)


def above_ours(rung: Rung) -> tuple[Rung, ...]:
    """What goes on from the highest rung with our kernels: as `above` does from the highest of torch."""
    name = rung.name
    return (
        replace(rung, name="graph", summary=f"{name} as a CUDA graph of the step", rows=("S8",), graph=True),
        replace(rung, name="half", summary=f"{name} in pure halves", rows=("S8",), half="pure"),
        replace(rung, name="compile_ours", summary=f"{name} with torch.compile around our operators", compiled=DEFAULT),
    )


_NORM_ADAM = replace(
    UNSCALE,
    name="fused_norm_adam",
    summary="on unscale: LayerNorm, softmax and AdamW in one kernel each",
    rows=("S4",),
    norm=True,
    adam=True,
)
_WINDOWS = replace(
    _NORM_ADAM, name="windows", summary="and windows cut and joined by one kernel each", rows=("S5",), windows=True
)
_ATTENTION = replace(
    _WINDOWS, name="attention", summary="and attention over windows in one kernel", rows=("S6",), attention=True
)
_BERT_OURS = replace(
    _NORM_ADAM,
    summary="on unscale: sdpa, LayerNorm's backward, AdamW, and dropout with bias and residual",
    rows=("D3", "D5", "S4"),
    sdpa=True,
)
_FUSED_NORM = replace(
    UNSCALE,
    name="fused_norm",
    summary="on unscale: torch's fused optimizer; batch norm, residual and ReLU in one kernel",
    rows=("O12",),
    fused=True,
    norm=True,
)

_EVERY = (FLOAT32, TF32, AMP, UNSCALE_LOOP, UNSCALE, FUSED)
SWIN = (*_EVERY, SDPA, *above(SDPA), _NORM_ADAM, _WINDOWS, _ATTENTION, *above_ours(_ATTENTION))
BERT = (*_EVERY, SDPA, *above(SDPA), _BERT_OURS, *above_ours(_BERT_OURS))
RESNET = (*_EVERY, *above(FUSED), _FUSED_NORM, *above_ours(_FUSED_NORM))
