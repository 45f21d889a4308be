"""Inference with Swin Transformer: images of 224 x 224 to logits, in halves, and with products in int8.

Source: NVIDIA's talk on Swin Transformer, which compares with the framework in half precision.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from harness.collection.models.sizes import CHANNELS
from harness.collection.ops.elementwise import BOTH
from harness.collection.steps.training import _inference
from harness.collection.steps.training._inference import Model
from harness.collection.steps.training._rungs import AUTOTUNE, DEFAULT
from harness.collection.steps.training._settings import forget_compiled, reference_modes, seed_of
from harness.collection.steps.training._swin import SWINS, of_windows
from harness.collection.steps.training._swin_check import enliven, judge
from harness.collection.steps.training._swin_int8 import (
    PLANS,
    SUMMARIES,
    Integers,
    arithmetic,
    config_of,
    no_int8,
    report_parts,
)
from harness.collection.steps.training._swin_prepared import bias_apart, prepared
from harness.collection.steps.training._trainer import built
from harness.model import Work
from harness.ops import (
    Choice,
    Compile,
    Context,
    Expected,
    Launch,
    Op,
    Symbols,
    Tensors,
    compiled,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

    from harness.collection.nn._swin_inference import SwinInference

CALIBRATED = 4, 16
"""Batches and their images, at most, that the scales of int8 are measured on; the case's images aren't among them."""


def work(symbols: Symbols, itemsize: int) -> Work:
    """Products and convolutions. Weights are read once, images too, and logits are written."""
    config = config_of(symbols["model"])
    images = symbols["B"] * CHANNELS * config.image**2
    return Work(
        read=(images + config.parameters()) * itemsize,
        written=symbols["B"] * config.classes * itemsize,
        flops=(("case", config.flops() * symbols["B"]),),
        items=symbols["B"],
        item="images",
    )


def make(ctx: Context) -> dict[str, Any]:
    """Images. They aren't declared: the weights, which are larger, stay in one place, so calls rotate over nothing."""
    return {"images": images_of(ctx, ctx.s.B, ctx.generator)}


def images_of(ctx: Context, count: int, generator: torch.Generator) -> torch.Tensor:
    """Random images of the case's model."""
    import torch

    side = config_of(ctx.s.model).image
    shape = (count, CHANNELS, side, side)
    return torch.randn(shape, generator=generator, device=ctx.device, dtype=ctx.dtype)


def check(ctx: Context, t: Tensors) -> Iterator[Expected | str]:
    """Logits, against the logits of the same rounded weights and images in float32, or in float64 on a CPU."""
    import torch

    if not hasattr(t, "logits"):
        yield "logits: the call made none"
        return
    wide = higher(ctx)
    with reference_modes(), torch.inference_mode():
        want = model_of(ctx, None).to(wide)(t.before.images.to(wide))
    yield from judge(ctx, t.logits, want, int8=ctx.case.variant in OF_INT8)


def recheck(ctx: Context, t: Tensors, call: Callable[[], object]) -> Iterator[Expected | str]:
    """Logits of a timed call, for other images in the place of the ones that it had until then."""
    import torch

    images = images_of(ctx, ctx.s.B, torch.Generator(ctx.device).manual_seed(secrets.randbelow(2**48)))
    t.images.copy_(images)
    call()
    yield from check(ctx, Tensors(logits=t.logits, before=Tensors(images=images)))


def higher(ctx: Context) -> torch.dtype:
    """The type of what results are compared with: float32, or float64 on a CPU."""
    import torch

    return torch.float64 if ctx.device.type == "cpu" else torch.float32


def model_of(ctx: Context, operators: Any) -> Any:
    """The model in halves, for inference. All variants of a case have the same weights."""
    model = built(ctx.s.model, operators, seed_of(ctx), ctx.device)
    enliven(model, seed_of(ctx), ctx.device)
    return model.to(ctx.dtype).eval()


OP = Op(
    "swin_infer",
    "inference with Swin Transformer, images a second",
    symbols={"B": "images of a call"},
    choices={"model": Choice("which configuration of harness.collection.models", SWINS)},
    dtypes=("float16", "bfloat16"),
    make=make,
    check=check,
    recheck=recheck,
    work=work,
    timer="steady",
)

_TANH = "GELU in its tanh form"
_TORCH: dict[str, Any] = {"role": "baseline", "rows": ("S16",)}
_OURS: dict[str, Any] = {"role": "ours", "rows": ("S16",)}


def launching(ctx: Context, make_model: Callable[[Context], Model]) -> Launch:
    """A call of the model without gradients."""
    return _inference.launching(ctx, make_model, make, "logits")


def replaying(ctx: Context, make_model: Callable[[Context], Model]) -> Launch:
    """A replay of the model as a CUDA graph."""
    return _inference.replaying(ctx, make_model, make, "logits")


# ---- What torch has.


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh form, which our product has in its end."""
    from torch.nn.functional import gelu

    return gelu(x, approximate="tanh")


def as_written(ctx: Context, **changed: Any) -> Any:
    """The model with its own operators. changed: operators that take the place of some."""
    from harness.collection.models.swin import SwinOperators

    return model_of(ctx, SwinOperators(**changed))


def with_sdpa(ctx: Context, **changed: Any) -> Any:
    """The model with torch's attention, as a user of torch prepares it for inference. changed: as in `as_written`."""
    return prepared(as_written(ctx, window_attention=of_windows, **changed))


@OP.variant("float32", "eager in float32, without TF32", arithmetic="float32", devices=BOTH, **_TORCH)
def float32(ctx: Context) -> Launch:
    """What bytes of weights and activations are compared with. Its weights and images were rounded to halves."""

    def wide(ctx: Context) -> Any:
        model = as_written(ctx).float()
        model.register_forward_pre_hook(lambda _, given: (given[0].float(),))
        return model

    return launching(ctx, wide)


@OP.variant("eager", "products, softmax and additions each by a kernel", devices=BOTH, **_TORCH)
def eager(ctx: Context) -> Launch:
    """The model as it is written."""
    return launching(ctx, as_written)


@OP.variant("eager_tanh", f"eager with {_TANH}", devices=BOTH, **_TORCH)
def eager_tanh(ctx: Context) -> Launch:
    """The framework with the formula that `fused` has."""
    return launching(ctx, partial(as_written, gelu=tanh_gelu))


@OP.variant("sdpa", "scaled_dot_product_attention, biases looked up ahead, channels last", devices=BOTH, **_TORCH)
def sdpa(ctx: Context) -> Launch:
    """Torch's attention chooses a kernel itself."""
    return launching(ctx, with_sdpa)


@OP.variant("sdpa_graph", "sdpa as a CUDA graph, into which images are copied", **_TORCH)
def sdpa_graph(ctx: Context) -> Launch:
    """No kernel waits for the host."""
    return replaying(ctx, with_sdpa)


@compiled_variants(OP, "sdpa with torch.compile of the model", returns=False, rows=("S16",))
def compile_(ctx: Context, compile_model: Compile) -> Launch:
    """Inductor's kernels for exactly this shape, around the library's."""
    ctx.defer(forget_compiled)
    return launching(ctx, lambda ctx: compile_model(with_sdpa(ctx)))


def _add_compiled_graph(name: str, summary: str, mode: str, **changed: Any) -> None:
    """Add a graph of a compiled model. changed: as in `as_written`."""

    @OP.variant(name, f"{summary} as a CUDA graph, into which images are copied", **_TORCH)
    def launch(ctx: Context) -> Launch:
        ctx.defer(forget_compiled)
        return replaying(ctx, lambda ctx: compiled(with_sdpa(ctx, **changed), mode))


_add_compiled_graph("compile_graph", "compile", DEFAULT)
_add_compiled_graph("compile_tanh_graph", f"compile with {_TANH}", DEFAULT, gelu=tanh_gelu)
_add_compiled_graph("compile_autotune_graph", "compile_autotune", AUTOTUNE)
_add_compiled_graph("autotune_tanh_graph", f"compile_autotune with {_TANH}", AUTOTUNE, gelu=tanh_gelu)


# ---- What is ours.


def with_attention(ctx: Context) -> Any:
    """The model with our attention, and biases looked up ahead. Inductor fuses all that lies between the products."""
    from harness.collection.nn._swin_operators import swin_operators

    return prepared(model_of(ctx, swin_operators(norm=False, windows=False)))


def with_ours(ctx: Context, gelu: Literal["tanh", "exact"] = "tanh") -> Model:
    """The model in as few kernels as we have."""
    import torch

    from harness.collection.nn._swin_inference import SwinInference

    with torch.no_grad():
        return SwinInference(model_of(ctx, None), gelu)


def with_int8(ctx: Context, plan: Integers) -> Model:
    """The same, with products in int8. Their scales are measured on other images."""
    import torch

    from harness.collection.nn._swin_inference import SwinInference
    from harness.collection.nn._swin_scales import calibrated

    generator = torch.Generator(ctx.device).manual_seed(seed_of(ctx) + 1)
    batches, most = CALIBRATED
    with torch.no_grad():
        model = model_of(ctx, None)
        scales = calibrated(model, [images_of(ctx, min(most, ctx.s.B), generator) for _ in range(batches)])
        made = SwinInference(model, scales=scales, second=plan.second, merging=plan.merging)
    ctx.afterwards(lambda: _of_parts(ctx, made))
    return made


def _of_parts(ctx: Context, made: SwinInference) -> None:
    """Report how exact the parts of a model in int8 are."""
    wide = higher(ctx)
    with reference_modes():
        report_parts(ctx, made, model_of(ctx, None).to(wide), make(ctx)["images"].to(wide))


@OP.variant(
    "bias_apart", "attention with the bias of q, k and v added by a kernel of its own", role="published", rows=("S10",)
)
def with_bias_apart(ctx: Context) -> Launch:
    """What the text has before its product adds the bias."""
    return launching(ctx, lambda ctx: bias_apart(with_attention(ctx)))


@OP.variant(
    "attention", "eager with our attention, biases of positions looked up ahead", role="ours", rows=("S9", "S10")
)
def attention(ctx: Context) -> Launch:
    """One kernel in the place of two products, softmax and transposes. torch's product adds the bias of q, k and v."""
    return launching(ctx, with_attention)


@OP.variant("fused", "one kernel at most between two products; GELU's tanh form in its product", **_OURS)
def fused(ctx: Context) -> Launch:
    """Attention; residual, LayerNorm and windows; and products by the library, each a kernel."""
    return launching(ctx, with_ours)


@OP.variant("graph", "fused as a CUDA graph, into which images are copied", **_OURS)
def graph(ctx: Context) -> Launch:
    """No kernel waits for the host."""
    return replaying(ctx, with_ours)


@OP.variant("graph_exact", "graph with GELU in its exact form, by a kernel of torch", **_OURS)
def graph_exact(ctx: Context) -> Launch:
    """What the tanh form saves, in time and in error."""
    return replaying(ctx, partial(with_ours, gelu="exact"))


@OP.variant("compile_ours", "compile with our attention", **_OURS)
def compile_ours(ctx: Context) -> Launch:
    """Inductor's kernels for what lies between the products but attention."""
    ctx.defer(forget_compiled)
    return launching(ctx, lambda ctx: compiled(with_attention(ctx)))


@OP.variant("compile_ours_autotune", f"the same; mode {AUTOTUNE}", **_OURS)
def compile_ours_autotune(ctx: Context) -> Launch:
    """Products that Inductor writes may have GELU in their end."""
    ctx.defer(forget_compiled)
    return launching(ctx, lambda ctx: compiled(with_attention(ctx), AUTOTUNE))


@OP.variant("compile_ours_graph", "compile_ours as a CUDA graph, into which images are copied", **_OURS)
def compile_ours_graph(ctx: Context) -> Launch:
    """No kernel waits for the host."""
    ctx.defer(forget_compiled)
    return replaying(ctx, lambda ctx: compiled(with_attention(ctx)))


# ---- Ours in int8. Residuals and attention stay in halves.


def _add_int8(name: str, summary: str, plan: Integers, launch: Callable[[Context, Any], Launch], *rows: str) -> None:
    options: dict[str, Any] = {"role": "ours", "rows": ("S14", *rows)}
    options |= {"unsupported": partial(no_int8, plan), "arithmetic": partial(arithmetic, plan)}
    OP.variant(name, summary, **options)(lambda ctx: launch(ctx, partial(with_int8, plan=plan)))


_add_int8("int8", SUMMARIES["int8"], PLANS["int8"], launching, "S16")
for _name, _plan in PLANS.items():
    _summary = "int8" if _name == "int8" else SUMMARIES[_name]
    _row = "S16" if _name == "int8" else "S15"
    _add_int8(f"{_name}_graph", f"{_summary}; as a CUDA graph, into which images are copied", _plan, replaying, _row)
OF_INT8 = frozenset(name for name in OP.variants if name.startswith("int8"))
