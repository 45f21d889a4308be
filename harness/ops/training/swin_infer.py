"""Inference with Swin Transformer: images of 224 x 224 to logits, in halves.

Source: NVIDIA's talk on Swin Transformer, which compares with the framework in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness.model import Work
from harness.models import MODELS, SwinConfig
from harness.models.sizes import CHANNELS
from harness.ops._baselines import Compile, compiled, compiled_variants
from harness.ops._elementwise import BOTH
from harness.ops.comparer import Expected
from harness.ops.sheet import Choice, Context, Launch, Op, Symbols, Tensors
from harness.ops.training import _operators
from harness.ops.training._settings import captured, forget_compiled, math_modes, seed_of, side_stream
from harness.ops.training._trainer import built

if TYPE_CHECKING:
    import torch

SWINS = ("swin_tiny", "swin_small", "swin_base", "swin_large", "swin_toy")
ALLOWED = 32
"""How far off a logit may be, in units in the last place of a typical one: each block rounds several times."""
WARM = 3
"""Calls before a graph is captured, in which libraries choose their kernels."""


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
    import torch

    side = config_of(ctx.s.model).image
    shape = (ctx.s.B, CHANNELS, side, side)
    return {"images": torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype)}


def check(ctx: Context, t: Tensors) -> Iterator[Expected | str]:
    """Logits, against those of the same rounded weights and images in float32, or in float64 on a CPU."""
    import torch

    if not hasattr(t, "logits"):
        yield "logits: the call made none"
        return
    wide = torch.float64 if ctx.device.type == "cpu" else torch.float32
    with math_modes(tf32=False), torch.inference_mode():
        want = model_of(ctx, None).to(wide)(t.before.images.to(wide))
    unit = torch.finfo(ctx.dtype).eps * float(want.square().mean().sqrt())
    yield Expected("logits", t.logits, want, ALLOWED * unit)


def model_of(ctx: Context, operators: Any) -> torch.nn.Module:
    """The model in halves, for inference."""
    return built(ctx.s.model, operators, seed_of(ctx), ctx.device).to(ctx.dtype).eval()


OP = Op(
    "swin_infer",
    "inference with Swin Transformer, images a second",
    symbols={"B": "images of a call"},
    choices={"model": Choice("which configuration of harness.models", SWINS)},
    dtypes=("float16", "bfloat16"),
    make=make,
    check=check,
    work=work,
    timer="steady",
)

Model = Callable[[Any], Any]
_TORCH: dict[str, Any] = {"role": "baseline", "rows": ("S16",)}
_OURS: dict[str, Any] = {"role": "ours", "rows": ("S16",)}


def launching(model: Model) -> Launch:
    """A call of the model without gradients."""
    import torch

    def launch(t: Tensors) -> None:
        with torch.inference_mode():
            t.logits = model(t.images)

    return launch


def replaying(ctx: Context, model: Model) -> Launch:
    """A replay of the model as a CUDA graph. It reads images at one place, so they are copied there first."""
    import torch

    images = make(ctx)["images"]
    with torch.inference_mode():
        with side_stream():
            for _ in range(WARM):
                model(images)
        replay = captured(lambda: model(images))

    def launch(t: Tensors) -> None:
        with torch.inference_mode():
            images.copy_(t.images)
        t.logits = replay()

    return launch


def with_sdpa(ctx: Context) -> torch.nn.Module:
    """The model with torch's attention."""
    return model_of(ctx, _operators.torch_attention(config_of(ctx.s.model)))


def with_ours(ctx: Context) -> torch.nn.Module:
    """The model with all of our operators."""
    from harness import nn

    return model_of(ctx, nn.swin_operators())


@OP.variant("eager", "products, softmax and additions each by a kernel", devices=BOTH, **_TORCH)
def eager(ctx: Context) -> Launch:
    """The model as it is written."""
    return launching(model_of(ctx, None))


@OP.variant("sdpa", "attention by scaled_dot_product_attention", devices=BOTH, **_TORCH)
def sdpa(ctx: Context) -> Launch:
    """Torch's attention chooses a kernel itself."""
    return launching(with_sdpa(ctx))


@OP.variant("sdpa_graph", "sdpa as a CUDA graph, into which images are copied", **_TORCH)
def sdpa_graph(ctx: Context) -> Launch:
    """No kernel waits for the host."""
    return replaying(ctx, with_sdpa(ctx))


@compiled_variants(OP, "sdpa with torch.compile of the model", returns=False, rows=("S16",))
def compile_(ctx: Context, compile_model: Compile) -> Launch:
    """Inductor's kernels for exactly this shape, around the library's."""
    ctx.defer(forget_compiled)
    return launching(compile_model(with_sdpa(ctx)))


@OP.variant("fused", "LayerNorm with windows, attention, and joining windows by one kernel each", **_OURS)
def fused(ctx: Context) -> Launch:
    """Our kernels around the library's matrix products."""
    return launching(with_ours(ctx))


@OP.variant("graph", "fused as a CUDA graph, into which images are copied", **_OURS)
def graph(ctx: Context) -> Launch:
    """No kernel waits for the host."""
    return replaying(ctx, with_ours(ctx))


@OP.variant("compile_ours", "fused with torch.compile around our operators", **_OURS)
def compile_ours(ctx: Context) -> Launch:
    """Inductor's kernels for what ours leave."""
    ctx.defer(forget_compiled)
    return launching(compiled(with_ours(ctx)))
