"""The rungs of any model's ladder. This file needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from harness.collection.steps.ladder._sheet import StepSheet
from harness.ops import MODES, Role

Half = Literal["", "own", "other"]
Way = Literal["ddp", "static_graph", "fsdp", "fsdp_keep", "gathered"]
DEFAULT, AUTOTUNE = MODES["compile"], MODES["compile_autotune"]
BACKENDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
"""Backends of torch's scaled_dot_product_attention, by the names that rungs have."""
_GIVEN = "given"
"""Stands for no calls for many weights at once: the optimizer as the file makes it."""
_FUSED_PARTS = ("Adam", "AdamW")
"""Optimizers whose fused calls torch has for parts of weights (DTensor), too."""
UNUSED = "ddp:unused"
"""The tag of a step in which some weights have no gradient."""
OPTIMIZERS = "optimizers:several"
"""The tag of a step with several optimizers."""
OF_MODEL = "optimizers:of_model"
"""The tag of a file whose optimizer() gets the model."""
NAMED = "losses:named"
"""The tag of a file that gives a dict of losses."""
CALLED = "calls:"
"""What the tag of a part of the model begins with that the step calls in place of the model."""
_NO_AUTOCAST = "autocast:none"
"""The tag of a step that fails under autocast."""
PARTS = 2
"""Parts of a batch whose gradients are added up by the rung that accumulates."""


OF_RANKS = (
    *("static_graph", "fsdp", "fsdp_keep", "fsdp_graph", "fsdp_compile", "fsdp_compile_graph"),
    *("patched_fsdp", "patched_fsdp_graph", "patched_fsdp_compile", "patched_fsdp_compile_graph"),
)
"""Rungs that are about several devices. On one device they are the rung that they go on from."""


@dataclass(frozen=True, slots=True)
class LadderRung:
    """One way of doing a user's step.

    base: the name of the rung below, all of which this one keeps; '' for the lowest.

    tf32: whether products and convolutions of float32 may be rounded to TF32. half: 'own' for autocast to the case's
    type, 'other' to the other type of halves; float16 has a scaled loss. optimizer: 'foreach', 'fused' or 'ours'; ''
    as the file makes it. channels_last: whether images and weights of convolutions have their channels last. attention:
    the only backend that scaled_dot_product_attention may take. checkpoint: whether blocks are computed anew in the
    backward. parts: of the batch, whose gradients are added up. graph: whether a CUDA graph of the step is replayed.
    compiled: the mode of torch.compile. streams: whether gradients of linear layers' weights are computed on a second
    stream. patched: whether the model has our kernels, by `nn.patch`.

    way: how several ranks train together; one rank trains alone, whatever the way. 'ddp' is DistributedDataParallel,
    'static_graph' the same told that each step has the same operations. 'fsdp' is FSDP2, where each rank keeps a part
    of the weights; 'fsdp_keep' gathers a block's weights once a step. 'gathered' is the reference's: each rank
    gathers all gradients and averages them itself.
    """

    name: str
    summary: str
    base: str = ""
    role: Role = "baseline"
    tf32: bool = False
    half: Half = ""
    optimizer: str = ""
    channels_last: bool = False
    attention: str = ""
    checkpoint: bool = False
    parts: int = 1
    graph: bool = False
    compiled: str = ""
    streams: bool = False
    patched: bool = False
    way: Way = "ddp"

    @property
    def is_sharded(self) -> bool:
        """Whether several ranks have a part of each weight."""
        return self.way in ("fsdp", "fsdp_keep")

    @property
    def arithmetic(self) -> str:
        """The type in which products and convolutions are done; '' for the case's, as under autocast."""
        return "" if self.half else "tf32" if self.tf32 else "float32"

    def dtype(self, own: str) -> str:
        """The type of halves of autocast, where the case's is `own`; '' without autocast."""
        other = {"float16": "bfloat16", "bfloat16": "float16"}[own]
        return {"": "", "own": own, "other": other}[self.half]


def on(base: LadderRung, name: str, summary: str, **changes: Any) -> LadderRung:
    """A rung that keeps what its base has, but for the changes."""
    return replace(base, name=name, summary=summary, base=base.name, **changes)


FLOAT32 = LadderRung("float32", "the step as the file has it, in float32 without TF32")


@cache
def rungs(
    *,
    channels_last: bool = False,
    optimizer: str = "fused",
    ours: bool = True,
    of_parts: str | None = None,
    autocast: bool = True,
) -> tuple[LadderRung, ...]:
    """The ladder, each rung after its base.

    channels_last: whether the rungs above have channels last. optimizer: what the rungs above have of torch's calls.
    ours: whether our AdamW can stand for the optimizer. of_parts: the same as optimizer, for parts of weights; None
    without the rungs that are about several ranks. autocast: whether the rungs above have it; else they go on from
    TF32.
    """
    return tuple(_rungs(channels_last, optimizer, ours, of_parts, autocast))


def of_sheet(sheet: StepSheet) -> tuple[LadderRung, ...]:
    """The ladder of a user's step."""
    of_parts = _has_for_parts(sheet) if sheet.world > 1 else None
    return rungs(
        channels_last=sheet.convolutions,
        optimizer=_has(sheet),
        ours=has_ours(sheet),
        of_parts=of_parts,
        autocast=not sheet.autocast,
    )


def _has(sheet: StepSheet) -> str:
    """What the rungs above have of torch's calls for many weights at once."""
    return "fused" if sheet.fused else "foreach" if sheet.foreach else ""


def _has_for_parts(sheet: StepSheet) -> str:
    """The same for parts of weights, which torch's fused calls can't update, but for Adam's."""
    fits = sheet.optimizer in _FUSED_PARTS or not sheet.fused
    return _has(sheet) if fits else "foreach" if sheet.foreach else ""


def tags(sheet: StepSheet) -> tuple[str, ...]:
    """What a scenario's tags say of the step, so that a report needs no plug-in."""
    return (
        *(f"gives:{name}" for name in sheet.gives),
        *(["ours:adamw"] if has_ours(sheet) else []),
        *(["layout:channels_last"] if sheet.convolutions else []),
        f"optimizer:{_has(sheet) or _GIVEN}",
        *([f"parts:{_has_for_parts(sheet) or _GIVEN}"] if sheet.world > 1 else []),
        *([UNUSED] if sheet.world > 1 and sheet.unused else []),
        *([OPTIMIZERS] if sheet.several else []),
        *([OF_MODEL] if sheet.takes_model else []),
        *([NAMED] if sheet.named else []),
        *(f"{CALLED}{name}" for name in sheet.called if "" not in sheet.called),
        *([_NO_AUTOCAST] if sheet.autocast else []),
    )


def of_tags(told: Collection[str], names: Collection[str]) -> tuple[LadderRung, ...]:
    """The ladder of a run, by its scenario's tags. names: of the rungs that have a time, for runs without such tags."""
    ours = "ours:adamw" in told
    known = dict(tag.split(":", 1) for tag in told if tag.startswith(("optimizer:", "parts:")))
    if "optimizer" not in known:
        return of_names(names, ours=ours)
    calls = {name: "" if one == _GIVEN else one for name, one in known.items()}
    last = "layout:channels_last" in told
    return rungs(
        channels_last=last,
        optimizer=calls["optimizer"],
        ours=ours,
        of_parts=calls.get("parts"),
        autocast=_NO_AUTOCAST not in told,
    )


def has_ours(sheet: StepSheet) -> bool:
    """Whether our AdamW can stand for one of the step's optimizers, and our scaler for its scaler."""
    return not sheet.adamw


def of_names(names: Collection[str], *, ours: bool = True) -> tuple[LadderRung, ...]:
    """The ladder of a run, by the names of the rungs that have a time: a model without some parts lacks their rungs.

    ours: as `rungs` has it.
    """
    optimizer = next((name for name in ("fused", "foreach") if f"{name}_optimizer" in names), "")
    return rungs(channels_last="channels_last" in names, optimizer=optimizer, ours=ours, of_parts=optimizer)


def _rungs(
    channels_last: bool, optimizer: str, ours: bool, of_parts: str | None, autocast: bool
) -> Iterator[LadderRung]:
    yield FLOAT32
    tf32 = on(FLOAT32, "tf32", "products and convolutions of float32 in TF32", tf32=True)
    yield tf32
    amp = on(tf32, "amp", "mixed precision: autocast, and in float16 a scaled loss", half="own")
    yield amp
    yield on(amp, "amp_other_half", "beside amp: in the other of float16 and bfloat16", half="other")
    low = amp if autocast else tf32
    yield on(low, "foreach_optimizer", "beside: torch's foreach optimizer", optimizer="foreach")
    yield on(low, "fused_optimizer", "torch's fused optimizer", optimizer="fused")
    base = rows = replace(low, name=f"{optimizer}_optimizer" if optimizer else low.name, optimizer=optimizer)
    last = on(base, "channels_last", "and channels last in memory", channels_last=True)
    yield last
    base = last if channels_last else base
    for name, backend in BACKENDS.items():
        summary = f"beside: scaled_dot_product_attention by {backend} alone"
        yield on(base, f"sdpa_{name}", summary, attention=backend)
    yield on(base, "checkpoint", "beside: blocks computed anew in the backward, for memory", checkpoint=True)
    yield on(base, "accumulate", f"beside: gradients of {PARTS} parts of the batch added up, for memory", parts=PARTS)
    graph = on(base, "graph", f"{base.name} as a CUDA graph of the step", graph=True)
    yield graph
    second = "with gradients of linear layers' weights on a second stream"
    yield on(graph, "streams", f"graph {second}", streams=True)
    yield from _compiled(base, "compile", f"{base.name} with torch.compile of the model")
    changes: dict[str, Any] = {"role": "ours", "patched": True, **({"optimizer": "ours"} if ours else {})}
    patched = on(base, "patched", "our kernels by harness.nn.patch", **changes)
    yield patched
    patched_graph = _graph(patched)
    yield patched_graph
    yield on(patched_graph, "patched_streams", f"patched_graph {second}", streams=True)
    yield from _compiled(patched, "patched_compile", "patched with torch.compile around our operators")
    if of_parts is not None:
        yield from _of_ranks(base, rows, of_parts, changes)


def _of_ranks(base: LadderRung, rows: LadderRung, of_parts: str, ours: Mapping[str, Any]) -> Iterator[LadderRung]:
    """What goes on from a rung by another way for several ranks to train together. On one device it is that rung.

    rows: the rung without channels last, since FSDP2 cuts weights into rows. ours: what our kernels change.
    """
    static = "DistributedDataParallel is told that every step has the same operations"
    yield on(base, "static_graph", f"beside: {static}", way="static_graph")
    fsdp = on(rows, "fsdp", "beside: FSDP2, each device has a part of the weights", way="fsdp", optimizer=of_parts)
    yield fsdp
    yield on(fsdp, "fsdp_keep", "fsdp that gathers the weights of a block once a step", way="fsdp_keep")
    yield from _in_parts(fsdp)
    patched = on(fsdp, "patched_fsdp", "fsdp with our kernels", **ours)
    yield patched
    yield from _in_parts(patched)


def _in_parts(base: LadderRung) -> Iterator[LadderRung]:
    """What goes on from a rung of FSDP2: a graph, and torch.compile of blocks, also as a graph."""
    yield _graph(base)
    compiled = on(base, f"{base.name}_compile", f"{base.name} with torch.compile of each block", compiled=DEFAULT)
    yield compiled
    yield _graph(compiled)


def _graph(base: LadderRung) -> LadderRung:
    return on(base, f"{base.name}_graph", f"{base.name} as a CUDA graph of the step", graph=True)


def _compiled(base: LadderRung, name: str, summary: str) -> Iterator[LadderRung]:
    """What goes on from a rung by torch.compile, in both modes, each also as a graph."""
    compiled = on(base, name, summary, compiled=DEFAULT)
    yield compiled
    yield _graph(compiled)
    tuned = on(compiled, f"{name}_autotune", f"{name} in mode {AUTOTUNE}", compiled=AUTOTUNE)
    yield tuned
    yield _graph(tuned)


def why_not(rung: LadderRung, sheet: StepSheet, dtype: str, world: int = 1) -> str:
    """Why a rung isn't one of a step's; '' if it is."""
    scaled = rung.dtype(dtype) == "float16"
    reasons = {
        f"the model fails under autocast: {sheet.autocast}": rung.half and sheet.autocast,
        f"torch has no fused {sheet.optimizer} for these weights": rung.optimizer == "fused" and not sheet.fused,
        f"torch has no foreach {sheet.optimizer}": rung.optimizer == "foreach" and not sheet.foreach,
        "the model has fewer than two convolutions of images": rung.channels_last and not sheet.convolutions,
        "the model never calls scaled_dot_product_attention": rung.attention and not sheet.attention,
        "the model has no list of blocks of one class": (
            (rung.checkpoint or rung.way == "fsdp_keep" or (rung.is_sharded and rung.compiled)) and not sheet.blocks
        ),
        "DistributedDataParallel sums gradients before a second stream has them": rung.streams and world > 1,
        "harness.nn.patch finds nothing to swap in the model": rung.patched and not sheet.has_swaps,
        "the model has no linear layer": rung.streams and not sheet.linear,
        "the file's own step doesn't wait for a second stream": rung.streams and sheet.has_step,
        "the step calls no module that could be compiled": rung.compiled and not sheet.called,
        f"a CUDA graph would repeat what the host decides anew in each step: {sheet.by_host}; a tensor on the device, "
        "which the step changes in place, is followed": rung.graph and sheet.by_host,
        "the file's own step takes the batch as a whole": rung.parts > 1 and sheet.has_step,
        "batch norm has other statistics in a part of a batch": rung.parts > 1 and sheet.batch_norm,
        f"a batch of {sheet.size} can't be cut into {rung.parts} parts": sheet.size % rung.parts,
        "float16 needs a scaled loss, and the file's own step has none: take bfloat16, or give a loss": (
            scaled and sheet.has_step
        ),
        "the host must see whether gradients overflowed, which a graph can't wait for: take bfloat16": (
            scaled and rung.graph and rung.optimizer not in ("fused", "ours")
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
