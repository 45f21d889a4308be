"""The rungs of a ladder: what each of them does differently in a training step. This file needs no torch.

A file for each model (`_swin`, `_bert`, `_resnet`, `_llama`) has the model's ladder, and the operators of its rungs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.model import Case
from harness.ops import MODES, Choice, Role

Half = Literal["none", "mixed", "pure"]
Backend = Literal["", "flash", "cudnn", "flex"]
Float8 = Literal["", "torch", "torchao"]

DEFAULT, AUTOTUNE = MODES["compile"], MODES["compile_autotune"]
STEP, GRAPH = "step", "graph"
"""The choice of how a rung's step is run, and the value that makes a CUDA graph of it."""
CLIP, UNCLIPPED = "clip", "none"
"""The choice of the global norm that gradients are clipped to, and the value that clips none."""
CLIPS = Choice("global norm that gradients are clipped to before an update", (UNCLIPPED, 1.0))
MICRO = "micro_batches"
"""The choice of how many equal parts a step's batch is cut into, whose gradients are added up before the update."""
MICROS = Choice("parts of a batch whose gradients are added up before an update", low=1, high=1024)


@dataclass(frozen=True, slots=True)
class Rung:
    """One way of doing a training step.

    base: the name of the rung below, all of which this one keeps; '' for the lowest. A scenario lists its variants in
    the order of the ladder, the base of each before it.

    tf32: whether products and convolutions of float32 may be rounded to TF32. half: 'mixed' for autocast with a scaled
    loss, 'pure' for a model in halves, whose optimizer has master weights in float32. loop: whether gradients are
    unscaled by one call each. fused: whether the optimizer is torch's fused one. half_norm: whether torch's LayerNorm
    and softmax leave their input's type, as ours do, where autocast makes float32 of it. sdpa: whether attention is
    torch's scaled_dot_product_attention. backend: which of its kernels, '' for its own choice; 'flex' for torch's
    flex_attention. chunked: whether the logits of a Llama are made for a part of the tokens at a time, and again in the
    backward. recomputed: whether blocks keep only what enters them. fp8: whose products in float8 blocks have, if any.
    graph: whether a CUDA graph of the whole step is replayed. compiled: the mode
    in which torch.compile compiles the model, if it does; the optimizer isn't compiled, since it is one kernel already.
    streams: whether gradients of weights are computed on a second stream.

    What is ours, from harness.nn: unscale (of gradients), adam, norm (LayerNorm and softmax; batch norm, residual and
    ReLU in a ResNet), dropout (in BERT), bias_residual (of BERT, in the kernel of dropout), windows (their partition
    and reverse), attention (over windows), gates (RoPE and SwiGLU of a Llama), loss (a Llama's, behind its head).
    """

    name: str
    summary: str
    base: str = ""
    rows: tuple[str, ...] = ()
    role: Role = "baseline"
    tf32: bool = False
    half: Half = "none"
    loop: bool = False
    fused: bool = False
    half_norm: bool = False
    sdpa: bool = False
    backend: Backend = ""
    chunked: bool = False
    recomputed: bool = False
    fp8: Float8 = ""
    graph: bool = False
    compiled: str = ""
    streams: bool = False
    unscale: bool = False
    adam: bool = False
    norm: bool = False
    dropout: bool = False
    bias_residual: bool = False
    windows: bool = False
    attention: bool = False
    gates: bool = False
    loss: bool = False

    @property
    def arithmetic(self) -> str:
        """The type in which products and convolutions are done; '' for the case's, as under autocast."""
        return "" if self.half != "none" else "tf32" if self.tf32 else "float32"


def on(base: Rung, name: str, summary: str, *rows: str, **changes: Any) -> Rung:
    """A rung that keeps what its base has, but for the changes. rows: techniques of public texts that it shows."""
    return replace(base, name=name, summary=summary, base=base.name, rows=rows, **changes)


def as_asked(rung: Rung, case: Case) -> Rung:
    """The rung as a case asks for it: as a graph, if the case says so."""
    return replace(rung, graph=rung.graph or case.values.get(STEP) == GRAPH)


def clip_of(case: Case) -> float | None:
    """The global norm that a case clips gradients to; None for a case that clips none."""
    value = case.values.get(CLIP, UNCLIPPED)
    return None if value == UNCLIPPED else float(value)


def asked_of(case: Case) -> dict[str, Any]:
    """What a case asks of its steps, as fields of a Setup."""
    values = case.values
    layout, parts = str(values.get("layout", "nchw")), int(values.get(MICRO, 1))
    return {"layout": layout, "clip": clip_of(case), "micro_batches": parts}


def cant_cut(case: Case) -> str | None:
    """Why a batch can't be cut into the micro-batches that a case asks for; None if it can."""
    size, parts = int(case.values["B"]), float(case.values.get(MICRO, 1))
    if size % parts == 0:
        return None
    return f"a batch of {size} can't be cut into {parts:g} equal micro-batches: give {MICRO} a divisor of B"


# ---- What torch has.

FLOAT32 = Rung("float32", "all in float32, without TF32; the optimizer's foreach calls")
TF32 = on(FLOAT32, "tf32", "products and convolutions of float32 in TF32", tf32=True)
AMP = on(
    TF32, "amp", "mixed precision: autocast, and a scaled loss with torch's foreach unscaling", "O2", "S2", half="mixed"
)
UNSCALE_LOOP = on(AMP, "unscale_loop", "beside amp: one call of unscaling a gradient", "P1", loop=True)
FUSED = on(AMP, "fused_optimizer", "torch's fused optimizer, which unscales too", fused=True)
HALF_NORM = on(
    FUSED,
    "half_norm",
    "beside: torch's LayerNorm and softmax keep their input's type, as ours do, where autocast makes float32 of it",
    half_norm=True,
)
SDPA = on(FUSED, "sdpa", "and attention by scaled_dot_product_attention", sdpa=True)


def above(rung: Rung) -> Iterator[Rung]:
    """What goes on from the highest rung of eager torch: a graph of the step; and beside it halves and torch.compile.

    In pure halves nothing is cast in each step: the model has halves, and the optimizer the float32 weights.
    """
    name = rung.name
    yield on(rung, f"{name}_graph", f"{name} as a CUDA graph of the step", "S8", graph=True)
    yield on(rung, f"{name}_half", f"{name} in pure halves", "S8", half="pure")
    compiled = on(rung, "compile", f"{name} with torch.compile of the model", compiled=DEFAULT)
    yield compiled
    yield on(compiled, "compile_graph", "compile as a CUDA graph of the step", "S8", graph=True)
    yield on(compiled, "compile_autotune", f"compile in mode {AUTOTUNE}", compiled=AUTOTUNE)


SDPA_UP = tuple(above(SDPA))
_COMPILE = next(rung for rung in SDPA_UP if rung.compiled)
COMPILE_HALF_NORM = on(
    _COMPILE, "compile_half_norm", "compile, and LayerNorm and softmax keep their input's type", half_norm=True
)
_COMPILE_HALF_NORM_GRAPH = on(
    COMPILE_HALF_NORM, "compile_half_norm_graph", "compile_half_norm as a CUDA graph of the step", "S8", graph=True
)
_COMPILE_HALF_NORM_AUTOTUNE = on(
    COMPILE_HALF_NORM, "autotune_half_norm", f"compile_half_norm in mode {AUTOTUNE}", compiled=AUTOTUNE
)
TORCH = (
    HALF_NORM,
    SDPA,
    *SDPA_UP,
    COMPILE_HALF_NORM,
    _COMPILE_HALF_NORM_GRAPH,
    _COMPILE_HALF_NORM_AUTOTUNE,
)
"""What a model with attention and LayerNorm has of torch."""

# ---- What is ours.

UNSCALE = on(AMP, "unscale", "beside amp: gradients unscaled by one kernel", "P1", role="ours", unscale=True)


def above_ours(rung: Rung) -> Iterator[Rung]:
    """What goes on from the highest rung with our kernels: as `above` does from the highest of torch."""
    name = rung.name
    yield on(rung, "graph", f"{name} as a CUDA graph of the step", "S8", graph=True)
    yield on(rung, "half", f"{name} in pure halves", "S8", half="pure")
    compiled = on(rung, "compile_ours", f"{name} with torch.compile around our operators", compiled=DEFAULT)
    yield compiled
    yield on(compiled, "compile_ours_graph", "compile_ours as a CUDA graph of the step", "S8", graph=True)
    yield on(compiled, "compile_ours_autotune", f"compile_ours in mode {AUTOTUNE}", compiled=AUTOTUNE)


EVERY = (FLOAT32, TF32, AMP, UNSCALE_LOOP, UNSCALE, FUSED)
"""The lowest rungs of the models that are trained in float16."""
