"""Windows of images, as Swin Transformer cuts them. Images are (B, H, W, C); windows are (N, window * window, C)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.models import swin
from harness.collection.nn._kernels import Described, OpKernels, allocator
from harness.collection.nn._operators import operator, without_autocast
from harness.collection.nn._rows import layer_norm, norm_kernel, with_epsilon
from harness.collection.ops.layouts.layer_norm_window_partition import OP as LAYER_NORM_WINDOW_PARTITION
from harness.collection.ops.layouts.window_partition import OP as WINDOW_PARTITION
from harness.collection.ops.layouts.window_reverse import OP as WINDOW_REVERSE
from harness.collection.ops.rows._norm import EPS


def window_partition(x: Tensor, window: int, shift: int = 0) -> Tensor:
    """Images (B, H, W, C), rolled by -shift pixels along H and W, to windows (B * H / window * W / window, T, C).

    T is window * window. Raises ValueError where windows can't tile the images, or for a negative shift.

    >>> x = torch.arange(16).view(1, 4, 4, 1)
    >>> nn.window_partition(x, window=2)[0].flatten()
    tensor([0, 1, 4, 5])
    """
    _checked(x.shape, window, shift)
    return _window_partition(x, window, shift)


def window_reverse(windows: Tensor, height: int, width: int, window: int, shift: int = 0) -> Tensor:
    """Windows to images (B, height, width, C): the inverse of window_partition(). Raises ValueError as that does.

    >>> x = torch.arange(16).view(1, 4, 4, 1)
    >>> torch.equal(nn.window_reverse(nn.window_partition(x, window=2), height=4, width=4, window=2), x)
    True
    """
    if windows.ndim != 3:
        raise ValueError(f"windows are {tuple(windows.shape)}; they must be (N, window * window, C)")
    images, tokens, channels = windows.shape
    of_image = height * width
    if tokens != window * window or not of_image or images * tokens % of_image:
        raise ValueError(f"{images} windows of {tokens} pixels don't make images of {height} x {width} pixels")
    _checked((images * tokens // of_image, height, width, channels), window, shift)
    return _window_reverse(windows, height, width, window, shift)


def norm_partition(  # noqa: PLR0913, PLR0917 - what layer_norm and window_partition take
    x: Tensor, weight: Tensor | None, bias: Tensor | None, window: int, shift: int = 0, eps: float = EPS
) -> Tensor:
    """Normalise images (B, H, W, C) by layer_norm(), and cut them by window_partition(). weight, bias: (C,).

    It is one kernel where no gradient is wanted. In training it is the two kernels of these functions, since the
    backward wants the statistics, which the one kernel doesn't write. Raises ValueError as both functions do.

    >>> x = torch.randn(1, 4, 4, 8)
    >>> nn.norm_partition(x, torch.ones(8), torch.zeros(8), window=2).shape
    torch.Size([4, 4, 8])
    """
    if weight is None or bias is None:
        return window_partition(layer_norm(x, weight, bias, eps), window, shift)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or bias.requires_grad):
        return window_partition(layer_norm(x, weight, bias, eps), window, shift)
    _checked(x.shape, window, shift)
    if not x.dtype.is_floating_point:
        raise ValueError(f"x is of {x.dtype}; norms take floating-point numbers")
    if weight.shape != x.shape[-1:] or bias.shape != x.shape[-1:]:
        raise ValueError(f"weight and bias of images with {x.shape[-1]} channels must be ({x.shape[-1]},)")
    return _norm_partition(x, weight.to(x.dtype), bias.to(x.dtype), window, shift, eps)


def _checked(shape: tuple[int, ...], window: int, shift: int) -> None:
    if len(shape) != 4 or window < 1 or shape[1] % window or shape[2] % window:
        raise ValueError(f"windows of {window} x {window} pixels don't tile images (B, H, W, C) of {tuple(shape)}")
    if shift < 0:
        raise ValueError(f"a shift of {shift} pixels: it must be 0 or more")


def _sizes(shape: tuple[int, ...], window: int, shift: int) -> dict[str, int]:
    return {**dict(zip("BHWC", shape, strict=True)), "window": window, "shift": shift}


def _of_images(x: Tensor, window: int, shift: int) -> Described:
    return Described(_sizes(x.shape, window, shift), {"direction": "forward"})


def _of_windows(windows: Tensor, height: int, width: int, window: int, shift: int) -> Described:
    count, tokens, channels = windows.shape
    images = count * tokens // (height * width)
    return Described(_sizes((images, height, width, channels), window, shift), {"direction": "forward"})


_partitions, _reverses = OpKernels(WINDOW_PARTITION, _of_images), OpKernels(WINDOW_REVERSE, _of_windows)
_norm_partitions = OpKernels(
    LAYER_NORM_WINDOW_PARTITION,
    lambda x, eps, window, shift: with_epsilon(Described(_sizes(x.shape, window, shift)), eps),
)


def _windows(x: Tensor, window: int) -> Tensor:
    """Room for the windows of x."""
    images, height, width, channels = x.shape
    pixels = window * window
    shape = images * (height // window) * (width // window), pixels, channels
    return allocator(x)(shape, (pixels * channels, channels, 1), x.dtype)


def _window_partition_run(x: Tensor, window: int, shift: int) -> Tensor:
    if _is_copy(x.shape[1], x.shape[2], window, shift):
        return _own(x.reshape(-1, window * window, x.shape[3]))
    launch = _partitions(x, window, shift)
    if launch is None:
        return _own(swin.window_partition(x.contiguous(), window, shift))
    y = _windows(x, window)
    launch(x.contiguous(), y)
    return y


def _is_copy(height: int, width: int, window: int, shift: int) -> bool:
    """Whether windows have the order of their images, so that torch's copy does it."""
    return window == width and shift % height == 0 and shift % width == 0


def _own(tensor: Tensor) -> Tensor:
    """A copy: a single window has the memory of its image."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _window_partition_fake(x: Tensor, window: int, _shift: int) -> Tensor:
    return _windows(x, window)


def _window_reverse_run(windows: Tensor, height: int, width: int, window: int, shift: int) -> Tensor:
    if _is_copy(height, width, window, shift):
        return _own(windows.reshape(-1, height, width, windows.shape[2]))
    y = _window_reverse_fake(windows, height, width, window, shift)
    launch = _reverses(windows, height, width, window, shift)
    if launch is None:
        return _own(swin.window_reverse(windows.contiguous(), height, width, window, shift)) if y.numel() else y
    launch(windows.contiguous(), y)
    return y


def _window_reverse_fake(windows: Tensor, height: int, width: int, _window: int, _shift: int) -> Tensor:
    count, tokens, channels = windows.shape
    row, image = width * channels, height * width * channels
    shape = count * tokens // (height * width), height, width, channels
    return allocator(windows)(shape, (image, row, channels, 1), windows.dtype)


def _partition_saves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives both
    x, *ctx.cut = inputs
    ctx.image = x.shape[1:3]


def _partition_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return _window_reverse(dy, *ctx.image, *ctx.cut), None, None


def _reverse_saves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives both
    ctx.cut = inputs[3:]


def _reverse_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return _window_partition(dy, *ctx.cut), None, None, None, None


# ---- The same by torch.


def _partition_formula(x: Tensor, window: int, shift: int) -> Tensor:
    images, height, width, channels = x.shape
    down, across = height // window, width // window
    x = x.roll((-shift, -shift), (1, 2)) if shift else x
    x = x.reshape(images, down, window, across, window, channels).transpose(2, 3)
    return x.reshape(images * down * across, window * window, channels)


def _reverse_formula(windows: Tensor, height: int, width: int, window: int, shift: int) -> Tensor:
    count, _, channels = windows.shape
    down, across = height // window, width // window
    images = count // (down * across)
    x = windows.reshape(images, down, across, window, window, channels).transpose(2, 3)
    x = x.reshape(images, height, width, channels)
    return x.roll((shift, shift), (1, 2)) if shift else x


def _partition_backward_formula(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return _reverse_formula(dy, *ctx.image, *ctx.cut), None, None


def _reverse_backward_formula(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return _partition_formula(dy, *ctx.cut), None, None, None, None


@without_autocast
def _norm_partition_formula(  # noqa: PLR0913, PLR0917 - as _norm_partition_run()
    x: Tensor, weight: Tensor, bias: Tensor, window: int, shift: int, eps: float
) -> Tensor:
    return _partition_formula(layer_norm(x, weight, bias, eps), window, shift)


def _norm_partition_run(  # noqa: PLR0913, PLR0917 - an operator takes what its kernel takes
    x: Tensor, weight: Tensor, bias: Tensor, window: int, shift: int, eps: float
) -> Tensor:
    launch = norm_kernel(_norm_partitions, x, eps, window, shift)
    if launch is None:
        return _norm_partition_by_torch(x, weight, bias, window, shift, eps)
    y = _windows(x, window)
    launch(x.contiguous(), weight.contiguous(), bias.contiguous(), y)
    return y


@without_autocast
def _norm_partition_by_torch(  # noqa: PLR0913, PLR0917 - as _norm_partition_run()
    x: Tensor, weight: Tensor, bias: Tensor, window: int, shift: int, eps: float
) -> Tensor:
    normal = functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return _window_partition_run(normal, window, shift)


_CUT = "SymInt window, SymInt shift"
_window_partition = operator(
    "window_partition",
    f"(Tensor x, {_CUT}) -> Tensor",
    _window_partition_run,
    _window_partition_fake,
    _partition_saves,
    _partition_backward,
    formula=_partition_formula,
    backward_formula=_partition_backward_formula,
)
_window_reverse = operator(
    "window_reverse",
    f"(Tensor windows, SymInt height, SymInt width, {_CUT}) -> Tensor",
    _window_reverse_run,
    _window_reverse_fake,
    _reverse_saves,
    _reverse_backward,
    formula=_reverse_formula,
    backward_formula=_reverse_backward_formula,
)
_norm_partition = operator(
    "norm_partition",
    f"(Tensor x, Tensor weight, Tensor bias, {_CUT}, float eps) -> Tensor",
    _norm_partition_run,
    lambda x, _weight, _bias, window, _shift, _eps: _windows(x, window),
    formula=_norm_partition_formula,
)
