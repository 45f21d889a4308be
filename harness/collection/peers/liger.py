"""Liger Kernel, by LinkedIn: Triton kernels for training. Its functions as in version 0.8.5."""

from __future__ import annotations

from harness.collection.ops.llm import swiglu, swiglu_grad
from harness.collection.ops.llm._swiglu import is_packed
from harness.collection.ops.rows import (
    add_rms_norm,
    add_rms_norm_grad,
    layer_norm,
    layer_norm_grad,
    rms_norm,
    rms_norm_grad,
    softmax,
    softmax_grad,
)
from harness.collection.ops.rows._norm import EPS
from harness.collection.peers._library import PeerLibrary
from harness.model import Case
from harness.ops import Context, Launch

LIBRARY = PeerLibrary("Liger Kernel", "liger_kernel", "liger-kernel>=0.8.4")
_LONGEST = 65_536  # elements of a row: a program keeps a whole row
_ROW = LIBRARY.obstacle(longest=_LONGEST)
_ROUNDING = "gemma"  # computes in float32 and rounds once, as the op does; 'llama' rounds before the product with gamma
_STAGES = 2  # of its kernels with a residual, as its forward says


@softmax.OP.variant("liger", "Liger Kernel: a program a row, in Triton", role="peer", returns=True, unsupported=_ROW)
def softmax_liger(_: Context) -> Launch:
    """Its forward, as autograd calls it."""
    from liger_kernel.ops.softmax import _softmax_forward

    return lambda t: (_softmax_forward(t.x)[0],)


@softmax_grad.OP.variant(
    "liger", "Liger Kernel: a program a row, in Triton", role="peer", returns=True, unsupported=_ROW
)
def softmax_grad_liger(ctx: Context) -> Launch:
    """Its backward, with the settings of its forward."""
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    block, warps = calculate_settings(ctx.s.N)
    return lambda t: (_softmax_backward(t.dy, t.y, block, warps, False),)


@rms_norm.OP.variant("liger", "Liger Kernel: a program a row, in Triton", role="peer", returns=True, unsupported=_ROW)
def rms_norm_liger(_: Context) -> Launch:
    """Its forward, which keeps rstd in float32."""
    from liger_kernel.ops.rms_norm import rms_norm_forward

    def launch(t):  # type: ignore[no-untyped-def]
        y, _, rstd, *_ = rms_norm_forward(t.x, t.gamma, EPS, 0.0, _ROUNDING, None)
        return y, rstd

    return launch


@rms_norm_grad.OP.variant(
    "liger", "Liger Kernel: a program a multiprocessor, in Triton", role="peer", returns=True, unsupported=_ROW
)
def rms_norm_grad_liger(ctx: Context) -> Launch:
    """Its backward; the sums of columns are added by torch."""
    from liger_kernel.ops.rms_norm import _str_to_casting_mode, rms_norm_backward
    from liger_kernel.ops.utils import calculate_settings

    block, warps = calculate_settings(ctx.s.N)
    rounding = _str_to_casting_mode[_ROUNDING]
    return lambda t: rms_norm_backward(t.dy, t.x, t.gamma, t.rstd, 0.0, rounding, block, warps, False, None)


@layer_norm.OP.variant("liger", "Liger Kernel: a program a row, in Triton", role="peer", returns=True, unsupported=_ROW)
def layer_norm_liger(_: Context) -> Launch:
    """Its forward, with mean and rstd in float32."""
    from liger_kernel.ops.layer_norm import layer_norm_forward

    def launch(t):  # type: ignore[no-untyped-def]
        y, _, mean, rstd, *_ = layer_norm_forward(t.x, t.gamma, t.beta, EPS)
        return y, mean, rstd

    return launch


@layer_norm_grad.OP.variant(
    "liger", "Liger Kernel: a program a multiprocessor, in Triton", role="peer", returns=True, unsupported=_ROW
)
def layer_norm_grad_liger(_: Context) -> Launch:
    """Its backward. gamma stands for beta, of which only the type counts."""
    from liger_kernel.ops.layer_norm import layer_norm_backward

    return lambda t: layer_norm_backward(t.dy, t.x, t.gamma, t.gamma, t.mean, t.rstd)


@add_rms_norm.OP.variant(
    "liger", "Liger Kernel: a program a row, in Triton", role="peer", returns=True, unsupported=_ROW
)
def add_rms_norm_liger(_: Context) -> Launch:
    """Its forward, which makes the sum and the norm in one kernel."""
    from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward

    def launch(t):  # type: ignore[no-untyped-def]
        y, total, rstd, *_ = fused_add_rms_norm_forward(t.x, t.residual, t.gamma, EPS, 0.0, _ROUNDING)
        return total, y, rstd

    return launch


@add_rms_norm_grad.OP.variant(
    "liger", "Liger Kernel: a program a multiprocessor, in Triton", role="peer", returns=True, unsupported=_ROW
)
def add_rms_norm_grad_liger(ctx: Context) -> Launch:
    """Its backward; the sums of columns are added by torch."""
    from liger_kernel.ops.fused_add_rms_norm import _str_to_casting_mode, fused_add_rms_norm_backward
    from liger_kernel.ops.utils import calculate_settings

    settings = 0.0, _str_to_casting_mode[_ROUNDING], *calculate_settings(ctx.s.N), _STAGES, False

    def launch(t):  # type: ignore[no-untyped-def]
        dx, _, dgamma = fused_add_rms_norm_backward(t.dy, t.dsum, t.x, t.gamma, t.rstd, *settings)
        return dx, dgamma

    return launch


_COLUMNS = LIBRARY.obstacle(row="H", longest=_LONGEST)


@swiglu.OP.variant("liger", "Liger Kernel: a program a row, in Triton", role="peer", returns=True, unsupported=_COLUMNS)
def swiglu_liger(ctx: Context) -> Launch:
    """Its forward, without autograd, for halves of rows or for two tensors."""
    from liger_kernel.ops.swiglu import swiglu_forward, swiglu_fused_gate_up_forward

    if is_packed(ctx):
        return lambda t: (swiglu_fused_gate_up_forward(t.gate)[1],)
    return lambda t: (swiglu_forward(t.gate, t.up)[2],)


def _one_tensor(case: Case) -> str | None:
    written_over = (
        "Liger Kernel writes the gradients of two tensors over the tensors, so the next call has other inputs"
    )
    return _COLUMNS(case) or (written_over if dict(case.choices)["layout"] == "separate" else None)


@swiglu_grad.OP.variant(
    "liger", "Liger Kernel: a program a row, in Triton", role="peer", returns=True, unsupported=_one_tensor
)
def swiglu_grad_liger(_: Context) -> Launch:
    """Its backward for halves of rows."""
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_backward

    return lambda t: (swiglu_fused_gate_up_backward(t.gate, t.dy), t.dup)
