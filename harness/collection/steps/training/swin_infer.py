"""Inference with Swin Transformer: images of 224 x 224 to logits, in halves, and with products in int8.

Source: NVIDIA's talk on Swin Transformer, which compares with the framework in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from harness.collection.models import MODELS, SwinConfig
from harness.collection.models.sizes import CHANNELS
from harness.collection.ops.elementwise import BOTH
from harness.collection.steps.training import _facts, _operators
from harness.collection.steps.training._rungs import AUTOTUNE, DEFAULT
from harness.collection.steps.training._settings import captured, forget_compiled, math_modes, seed_of, side_stream
from harness.collection.steps.training._swin_check import enliven, judge
from harness.collection.steps.training._trainer import built
from harness.cuda import cublaslt
from harness.cuda.cublaslt import Gemm
from harness.model import Case, Work
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

SWINS = ("swin_tiny", "swin_small", "swin_base", "swin_large", "swin_toy")
WARM = 3
"""Calls before a graph is captured or memory is counted, in which libraries choose their kernels."""
CALIBRATED = 4, 16
"""Batches and their images, at most, that the scales of int8 are measured on; the case's images aren't among them."""


def config_of(model: str) -> SwinConfig:
    """The configuration of a Swin Transformer."""
    config = MODELS[model]
    assert isinstance(config, SwinConfig), f"{model} is no Swin Transformer"
    return config


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
    wide = torch.float64 if ctx.device.type == "cpu" else torch.float32
    with math_modes(tf32=False), torch.inference_mode():
        want = model_of(ctx, None).to(wide)(t.before.images.to(wide))
    yield from judge(ctx, t.logits, want, int8=ctx.case.variant in OF_INT8)


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
    work=work,
    timer="steady",
)

Model = Callable[[Any], Any]
_TANH = "GELU in its tanh form"
_TORCH: dict[str, Any] = {"role": "baseline", "rows": ("S16",)}
_OURS: dict[str, Any] = {"role": "ours", "rows": ("S16",)}


def launching(ctx: Context, make_model: Callable[[Context], Model]) -> Launch:
    """A call of the model without gradients."""
    import torch

    before = _facts.allocated(ctx)
    choosing(ctx)
    model = make_model(ctx)

    def launch(t: Tensors) -> None:
        with torch.inference_mode():
            t.logits = model(t.images)

    own = Tensors(**make(ctx))
    for _ in range(WARM):
        launch(own)
    _facts.with_memory(ctx, partial(launch, own), before)
    ctx.afterwards(lambda: _facts.report_steps(ctx, partial(launch, own), ctx.s.B))
    return launch


def replaying(ctx: Context, make_model: Callable[[Context], Model]) -> Launch:
    """A replay of the model as a CUDA graph. It reads images at one place, so they are copied there first."""
    import torch

    before = _facts.allocated(ctx)
    choosing(ctx)
    model, images = make_model(ctx), make(ctx)["images"]
    with torch.inference_mode():
        with side_stream():
            for _ in range(WARM):
                model(images)
        replay = _facts.with_memory(ctx, lambda: captured(lambda: model(images)), before)

    def launch(t: Tensors) -> None:
        with torch.inference_mode():
            images.copy_(t.images)
        t.logits = replay()

    own = Tensors(**make(ctx))
    ctx.afterwards(lambda: _facts.report_steps(ctx, partial(launch, own), ctx.s.B))
    return launch


def choosing(ctx: Context) -> None:
    """Let cuDNN try its algorithms until the case is over."""
    modes = ExitStack()
    modes.enter_context(math_modes(tf32=False))
    ctx.defer(modes.close)


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
    return prepared(model_of(ctx, replace(_operators.torch_attention(config_of(ctx.s.model)), **changed)))


def prepared(model: Any) -> Any:
    """Look the biases of positions up once for all calls, and let channels of the patches' convolution come last.

    Then the convolution's output needs no transpose. The model's operators are replaced, and its tables by biases.
    """
    import torch

    for part in model.modules():
        if hasattr(part, "relative_position_bias_table"):
            table, index = part.relative_position_bias_table, part.relative_position_index
            bias = part.operators.position_bias(table, index).detach()
            part.relative_position_bias_table = torch.nn.Parameter(bias)
            part.operators = replace(part.operators, position_bias=_given)
    return model.to(memory_format=torch.channels_last)


def _given(bias: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return bias


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
_add_compiled_graph("compile_tanh_autotune_graph", f"compile_autotune with {_TANH}", AUTOTUNE, gelu=tanh_gelu)


# ---- What is ours.


def with_attention(ctx: Context) -> Any:
    """The model with our attention, and biases looked up ahead. Inductor fuses all that lies between the products."""
    from harness.collection import nn

    return prepared(model_of(ctx, nn.swin_operators(norm=False, windows=False)))


def with_ours(ctx: Context, gelu: Literal["tanh", "exact"] = "tanh") -> Model:
    """The model in as few kernels as we have."""
    import torch

    from harness.collection.nn._swin_inference import SwinInference

    with torch.no_grad():
        return SwinInference(model_of(ctx, None), gelu)


def with_int8(ctx: Context) -> Model:
    """The same, with the products of blocks in int8. Its scales are measured on other images."""
    import torch

    from harness.collection.nn._swin_inference import SwinInference, calibrated

    generator = torch.Generator(ctx.device).manual_seed(seed_of(ctx) + 1)
    batches, most = CALIBRATED
    with torch.no_grad():
        model = model_of(ctx, None)
        scales = calibrated(model, [images_of(ctx, min(most, ctx.s.B), generator) for _ in range(batches)])
        made = SwinInference(model, scales=scales)
    ctx.defer(made.close)
    return made


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


def no_int8(case: Case) -> str | None:
    """Why cuBLASLt can't make the products of a case in int8; None if it can."""
    if reason := cublaslt.missing():
        return reason
    config = config_of(str(case.values["model"]))
    for rows, outputs, inputs in sorted(set(products_of(config, case.symbols["B"]))):
        if reason := cublaslt.obstacle(Gemm(rows, outputs, inputs, "int8", "int8", alpha="device")):
            return f"a product of {rows} x {inputs} with {inputs} x {outputs}: {reason}"
    return None


def products_of(config: SwinConfig, images: int) -> Iterator[tuple[int, int, int]]:
    """Rows, outputs and inputs of the products of blocks, by stage."""
    for stage in range(len(config.depths)):
        rows, size = images * config.side(stage) ** 2, config.channels(stage)
        yield from ((rows, 3 * size, size), (rows, size, size), (rows, 4 * size, size), (rows, size, 4 * size))


def arithmetic_of_int8(symbols: Symbols, _itemsize: int) -> tuple[tuple[str, int], ...]:
    """The products of blocks in int8; attention, the products between stages and both ends of the model in halves."""
    config, images = config_of(symbols["model"]), symbols["B"]
    of_blocks = [2 * rows * outputs * inputs for rows, outputs, inputs in products_of(config, images)]
    int8 = sum(depth * sum(of_blocks[4 * stage : 4 * stage + 4]) for stage, depth in enumerate(config.depths))
    return (("int8", int8), ("case", config.flops() * images - int8))


_INT8: dict[str, Any] = {
    "role": "ours",
    "rows": ("S14", "S16"),
    "unsupported": no_int8,
    "arithmetic": arithmetic_of_int8,
}


@OP.variant("int8", "fused with the products of blocks in int8: static scales, one a tensor", **_INT8)
def int8(ctx: Context) -> Launch:
    """Residuals and attention stay in halves. What a product makes is int8, too, so that it moves few bytes."""
    return launching(ctx, with_int8)


@OP.variant("int8_graph", "int8 as a CUDA graph, into which images are copied", **_INT8)
def int8_graph(ctx: Context) -> Launch:
    """No kernel waits for the host."""
    return replaying(ctx, with_int8)


OF_INT8 = ("int8", "int8_graph")
