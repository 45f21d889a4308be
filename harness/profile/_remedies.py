"""What to try in a program of one's own, by what its timeline shows, and what each remedy could save at most."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.profile._timeline import KernelTime, Timeline

_LEAST = 0.03
"""The least share of the time that is worth a change."""
_ELEMENTWISE = ("elementwise_vectorised", "elementwise_unrolled")
_FLOAT32 = re.compile(r"sgemm|f32f32_f32f32|winograd", re.IGNORECASE)
"""Products and convolutions in float32 without tensor cores: names of cuBLAS, CUTLASS and cuDNN."""
_TENSOR_CORES = re.compile(r"tf32|1688|16816|tensorop|hsh_|f16|fp16|half", re.IGNORECASE)
_LAYOUT = re.compile(r"nchw_?to_?nhwc|nhwc_?to_?nchw", re.IGNORECASE)
_IS_FUSED = re.compile(r"fused_?(adam|sgd|adagrad)", re.IGNORECASE)
_FOREACH = re.compile(r"multi_tensor_apply", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something to try. seconds: what it could save at most, of all devices together: the time that it is about."""

    what: str
    seconds: float
    advice: str


def remedies(found: Timeline) -> tuple[Remedy, ...]:
    """What to try, the largest bound first; none for a CPU's timeline, and none that saves less than 3% of the time.

    Bounds don't add up: torch.compile and a graph remove some of the same gaps.
    """
    if not found.on_gpu:
        return ()
    worth = [one for one in _all(found) if one.seconds >= _LEAST * found.time]
    return tuple(sorted(worth, key=lambda one: -one.seconds))


def _all(found: Timeline) -> Iterator[Remedy]:
    yield Remedy(
        "the GPU waits while the host launches",
        found.host,
        "a CUDA graph: torch.compile(mode='reduce-overhead') or torch.cuda.make_graphed_callables; else larger batches",
    )
    yield Remedy(
        "the GPU waits while the host is outside of torch",
        found.idle - found.host,
        "DataLoader(num_workers=..., pin_memory=True), copies with non_blocking=True; no .item(), .cpu() or print of a "
        "tensor in each step",
    )
    yield Remedy(
        "element-wise kernels, one for each operation",
        _seconds(found, lambda kernel: kernel.family in _ELEMENTWISE and not kernel.name.startswith("triton_")),
        "torch.compile, which fuses them; by hand, one kernel for what stands side by side",
    )
    yield Remedy(
        "products and convolutions in float32 without tensor cores",
        _seconds(found, _without_tensor_cores),
        "torch.autocast with bfloat16, or TF32: torch.set_float32_matmul_precision('high'), and for convolutions "
        "torch.backends.cudnn.allow_tf32 = True",
    )
    if not _seconds(found, lambda kernel: kernel.family == "attention"):
        yield Remedy(
            "softmax in kernels of its own",
            _seconds(found, lambda kernel: kernel.family == "softmax"),
            "if it is attention's: torch.nn.functional.scaled_dot_product_attention, which also saves the kernels of "
            "mask, scale and dropout beside it",
        )
    yield Remedy(
        "copies between NCHW and NHWC",
        _seconds(found, lambda kernel: bool(_LAYOUT.search(kernel.name))),
        "model and images to memory_format=torch.channels_last",
    )
    yield Remedy(
        "an optimizer of many launches",
        _seconds(found, lambda kernel: bool(_FOREACH.search(kernel.name)) and not _IS_FUSED.search(kernel.name)),
        "fused=True, as in torch.optim.AdamW(..., fused=True): one pass over weights, gradients and moments",
    )


def _without_tensor_cores(kernel: KernelTime) -> bool:
    is_product = kernel.family in {"gemm", "convolution"}
    return is_product and bool(_FLOAT32.search(kernel.name)) and not _TENSOR_CORES.search(kernel.name)


def _seconds(found: Timeline, chosen: Callable[[KernelTime], bool]) -> float:
    """The devices' time that the kernels take; kernels that run beside others share it."""
    return found.time * sum(kernel.share for kernel in found.kernels if chosen(kernel))
