"""Inference with a Swin Transformer in int8: which products are, what they give, and how exact its parts are."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from harness.collection.models import MODELS, SwinConfig
from harness.collection.ops.gemm._int8 import SNR, Inaccuracy
from harness.collection.steps.training._figures import BLOCK_SNR, MERGING_SNR
from harness.cuda import cublaslt
from harness.cuda.cublaslt import Gemm
from harness.model import Case
from harness.ops import Context, Symbols

if TYPE_CHECKING:
    import torch

    from harness.collection.nn._swin_inference import SwinInference

Product = tuple[int, int, int]
"""Rows, outputs and inputs."""
Out = Literal["int8", "int32"]


@dataclass(frozen=True, slots=True)
class Integers:
    """What the products in int8 give, as SwinInference takes it. All other products of blocks give int8."""

    second: Out = "int8"
    merging: Out | None = None


PLANS = {
    "int8": Integers(),
    "int8_merged": Integers(merging="int8"),
    "int8_wide_second": Integers("int32", "int8"),
    "int8_wide_merging": Integers("int8", "int32"),
    "int8_wide": Integers("int32", "int32"),
}
SUMMARIES = {
    "int8": "fused with the products of blocks in int8: static scales, one a tensor",
    "int8_merged": "int8 with the products between stages in int8, too",
    "int8_wide_second": "int8_merged, where the second product of an MLP gives int32, dequantised with the residual",
    "int8_wide_merging": "int8_merged, where products between stages give int32, dequantised with LayerNorm",
    "int8_wide": "int8_merged, where both give int32",
}


def config_of(model: str) -> SwinConfig:
    """The configuration of a Swin Transformer."""
    config = MODELS[model]
    assert isinstance(config, SwinConfig), f"{model} is no Swin Transformer"
    return config


def products_of(config: SwinConfig, images: int) -> Iterator[Product]:
    """The four products of a block of each stage, in their order."""
    for stage in range(len(config.depths)):
        rows, size = images * config.side(stage) ** 2, config.channels(stage)
        yield from ((rows, 3 * size, size), (rows, size, size), (rows, 4 * size, size), (rows, size, 4 * size))


def mergings_of(config: SwinConfig, images: int) -> Iterator[Product]:
    """The products between stages."""
    for stage in range(1, len(config.depths)):
        size = config.channels(stage)
        yield images * config.side(stage) ** 2, size, 2 * size


def no_int8(integers: Integers, case: Case) -> str | None:
    """Why cuBLASLt can't make the products of a case in int8; None if it can."""
    if reason := cublaslt.missing():
        return reason
    config, images = config_of(str(case.values["model"])), case.symbols["B"]
    asked = {(product, "int8") for product in products_of(config, images)}
    asked |= {(product, integers.second) for product in [*products_of(config, images)][3::4]}
    if integers.merging:
        asked |= {(product, integers.merging) for product in mergings_of(config, images)}
    for (rows, outputs, inputs), out in sorted(asked):
        alpha: Any = "device" if out == "int8" else "one"
        if reason := cublaslt.obstacle(Gemm(rows, outputs, inputs, "int8", out, alpha=alpha)):
            return f"a product of {rows} x {inputs} with {inputs} x {outputs}, to {out}: {reason}"
    return None


def arithmetic(integers: Integers, symbols: Symbols, _itemsize: int) -> tuple[tuple[str, int], ...]:
    """The operations in int8; the rest, such as attention and both ends of the model, is in halves."""
    config, images = config_of(symbols["model"]), symbols["B"]
    of_blocks = [2 * rows * outputs * inputs for rows, outputs, inputs in products_of(config, images)]
    int8 = sum(depth * sum(of_blocks[4 * stage : 4 * stage + 4]) for stage, depth in enumerate(config.depths))
    if integers.merging:
        int8 += sum(2 * rows * outputs * inputs for rows, outputs, inputs in mergings_of(config, images))
    return (("int8", int8), ("case", config.flops() * images - int8))


def report_parts(ctx: Context, made: SwinInference, model: torch.nn.Module, images: torch.Tensor) -> None:
    """Report the signal to noise of what a block, and a product between stages, makes of its input; means of all.

    model: with the same weights in higher precision. The input of each part is what the model gives it, in halves.
    """
    import torch

    from harness.collection.models.swin import PatchMerging, SwinBlock

    found: dict[str, list[float]] = {BLOCK_SNR: [], MERGING_SNR: []}
    watched = [part for part in model.modules() if isinstance(part, SwinBlock | PatchMerging)]
    for module, (is_block, part) in zip(watched, made.parts(), strict=True):

        def watch(
            _: Any,
            given: tuple[torch.Tensor, ...],
            want: torch.Tensor,
            part: Any = part,
            name: str = BLOCK_SNR if is_block else MERGING_SNR,
        ) -> None:
            errors = Inaccuracy()
            errors.add(part(given[0].to(ctx.dtype).contiguous()), want)
            found[name] += [value for key, value in errors.figures.items() if key == SNR]

        module.register_forward_hook(watch)
    with torch.inference_mode():
        model(images)
    for name, values in found.items():
        if values:
            ctx.report(name, statistics.fmean(values))
