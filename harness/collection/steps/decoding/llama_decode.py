"""Decoding with a Llama: the logits of one more token for each sequence, in bfloat16.

A call reads all weights, and the keys and values of all tokens before. Source of the baseline: torch's gpt-fast, which
has a static cache, torch.compile and a CUDA graph.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.collection.models import MODELS, LlamaConfig
from harness.collection.ops.elementwise import BOTH
from harness.collection.steps.training import _inference
from harness.collection.steps.training._rungs import AUTOTUNE, DEFAULT
from harness.collection.steps.training._settings import forget_compiled, math_modes, seed_of
from harness.collection.steps.training._trainer import built
from harness.families import declare
from harness.model import Case, Work
from harness.ops import Choice, Context, Launch, Op, Symbols, Tensors, compiled

if TYPE_CHECKING:
    import torch

    from harness.collection.models.llama import LlamaOperators
    from harness.collection.steps.decoding._decoder import Decoder

TIMES = 8.0
"""How far off logits may be over their length, in units in the last place of their type, for a model of one layer.
Errors of layers add up like errors of random signs, as the root of their number."""


def config_of(model: str) -> LlamaConfig:
    """The configuration of a Llama by its name."""
    config = MODELS[model]
    assert isinstance(config, LlamaConfig), f"{model} is no Llama"
    return config


def work(symbols: Symbols, itemsize: int) -> Work:
    """All weights are read, and keys and values of all tokens before; a token's own, and logits, are written."""
    config, size = config_of(symbols["model"]), symbols["B"]
    kept = config.numbers_of_token() * size
    return Work(
        read=(config.parameters() + kept * symbols["C"]) * itemsize,
        written=(kept + size * config.vocabulary) * itemsize,
        flops=(("case", config.flops_of_token(symbols["C"]) * size),),
        items=size,
        item="tokens",
    )


def make(ctx: Context) -> dict[str, Any]:
    """Tokens. They aren't declared: weights and cache, which are larger, stay in one place, so nothing rotates."""
    return {"tokens": _tokens(ctx, ctx.generator)}


def _tokens(ctx: Context, generator: torch.Generator) -> torch.Tensor:
    import torch

    return torch.randint(config_of(ctx.s.model).vocabulary, (ctx.s.B,), generator=generator, device=ctx.device)


def decoder(ctx: Context, operators: LlamaOperators | None, dtype: torch.dtype | None = None) -> Decoder:
    """The model with its cache: the same numbers for all variants of a case, rounded to the case's type.

    dtype: the type that they have; the case's unless given.
    """
    import torch

    from harness.collection.steps.decoding._decoder import Decoder

    generator = torch.Generator(ctx.device).manual_seed(seed_of(ctx))
    model = built(ctx.s.model, operators, seed_of(ctx), ctx.device).to(ctx.dtype).eval()
    made = Decoder(model, ctx.s.B, ctx.s.C, generator)
    if dtype is not None:
        made.to(dtype)
        made.keys, made.values = ([one.to(dtype) for one in each] for each in (made.keys, made.values))
    return made


def check(ctx: Context, t: Tensors) -> Iterator[str]:
    """Logits, against the logits of the same rounded weights and cache in float32, or in float64 on a CPU."""
    import torch

    if not hasattr(t, "logits"):
        yield "logits: the call made none"
        return
    wide = torch.float64 if ctx.device.type == "cpu" else torch.float32
    with math_modes(tf32=False), torch.inference_mode():
        want = decoder(ctx, None, wide)(t.before.tokens)
    if t.logits.shape != want.shape:
        yield f"logits: their shape is {tuple(t.logits.shape)}, not {tuple(want.shape)}"
        return
    off = float(torch.linalg.vector_norm(t.logits.to(wide) - want) / torch.linalg.vector_norm(want))
    allowed = TIMES * torch.finfo(ctx.dtype).eps * math.sqrt(config_of(ctx.s.model).blocks)
    if not off <= allowed:
        yield f"logits: they are off by {off:.2%} of their length, allowed are {allowed:.2%}"


def recheck(ctx: Context, t: Tensors, call: Callable[[], object]) -> Iterator[str]:
    """Logits of a timed call, for other tokens in the place of the ones that it had until then."""
    import torch

    tokens = _tokens(ctx, torch.Generator(ctx.device).manual_seed(secrets.randbelow(2**48)))
    t.tokens.copy_(tokens)
    call()
    yield from check(ctx, Tensors(logits=t.logits, before=Tensors(tokens=tokens)))


declare("gemm", r"^decode_step_")  # nearly all that the kernel of a whole step does

OP = Op(
    "llama_decode",
    "one more token of each sequence by a Llama, tokens a second",
    symbols={"B": "sequences", "C": "tokens of a sequence before"},
    choices={"model": Choice("which configuration of harness.collection.models", ("llama_1b", "llama_toy"))},
    dtypes=("bfloat16", "float16"),
    make=make,
    check=check,
    recheck=recheck,
    work=work,
    timer="steady",
)
Way = Callable[[Context, Callable[[Context], Any], Callable[[Context], dict[str, Any]], str], Launch]


def _add(name: str, summary: str, mode: str | None, way: Way, *, sdpa: bool = True) -> None:
    """Add a way of torch's. mode: of torch.compile, if it compiles. A CPU has no graphs, and nothing to tune."""
    devices = ("cuda",) if way is _inference.replaying or mode == AUTOTUNE else BOTH

    @OP.variant(name, summary, role="baseline", devices=devices)
    def launch(ctx: Context) -> Launch:
        return way(ctx, partial(_of_torch, mode=mode, sdpa=sdpa), make, "logits")


def _of_torch(ctx: Context, *, mode: str | None, sdpa: bool) -> Any:
    from harness.collection.steps.decoding._decoder import WITH_SDPA

    made = decoder(ctx, WITH_SDPA if sdpa else None)
    if mode is None:
        return made
    ctx.defer(forget_compiled)
    return compiled(made, mode)


_GRAPH = "as a CUDA graph, into which tokens are copied"
_add(
    "eager",
    "the model as it is written: products, softmax and additions each by a kernel",
    None,
    _inference.launching,
    sdpa=False,
)
_add("sdpa", "and attention by scaled_dot_product_attention, which takes groups of queries", None, _inference.launching)
_add("sdpa_graph", f"sdpa {_GRAPH}", None, _inference.replaying)
_add("compile", "sdpa with torch.compile of the model", DEFAULT, _inference.launching)
_add("compile_autotune", f"the same in mode {AUTOTUNE}", AUTOTUNE, _inference.launching)
_add("compile_graph", f"compile {_GRAPH}", DEFAULT, _inference.replaying)
_add("compile_autotune_graph", f"compile_autotune {_GRAPH}", AUTOTUNE, _inference.replaying)


def _of_ours(ctx: Context) -> Any:
    from harness.collection.steps.decoding import _ours

    if ctx.s.B > _ours.MOST:
        return decoder(ctx, _ours.operators(ctx))
    return _ours.FewSequences(ctx, decoder(ctx, None))


@OP.variant("ours", "five kernels of ours a layer; beyond 8 sequences, products by torch, and our kernels between them")
def ours(ctx: Context) -> Launch:
    """Kernels begin while the one before still runs."""
    return _inference.launching(ctx, _of_ours, make, "logits")


@OP.variant("ours_graph", f"ours {_GRAPH}")
def ours_graph(ctx: Context) -> Launch:
    """So the host takes no part in a step."""
    return _inference.replaying(ctx, _of_ours, make, "logits")


def _of_one_kernel(ctx: Context) -> Any:
    from harness.collection.steps.decoding import _one_kernel

    return _one_kernel.OneSequence(ctx, decoder(ctx, None))


def _not_one_kernel(case: Case) -> str | None:
    """Why a step can't be one kernel of ours; None if it can."""
    from harness.collection.steps.decoding import _one_kernel

    if case.symbols["B"] != 1:
        return "for one sequence"
    return _one_kernel.unfit(config_of(str(case.values["model"])), case.symbols["C"] + 1)


@OP.variant("persistent", "one kernel of ours for the whole step, whose blocks stay", unsupported=_not_one_kernel)
def persistent(ctx: Context) -> Launch:
    """Weights come as one stream through all layers."""
    return _inference.launching(ctx, _of_one_kernel, make, "logits")


@OP.variant("persistent_graph", f"persistent {_GRAPH}", unsupported=_not_one_kernel)
def persistent_graph(ctx: Context) -> Launch:
    """So tokens are copied without the host."""
    return _inference.replaying(ctx, _of_one_kernel, make, "logits")
