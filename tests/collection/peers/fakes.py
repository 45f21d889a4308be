"""Stand-ins in torch for functions of libraries beside ours; each fails where an argument is not as it must be."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def rms(x: torch.Tensor, gamma: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = (x.float().square().mean(1) + eps).rsqrt()
    return (x.float() * rstd[:, None] * gamma.float()).to(x.dtype), rstd


def centred(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
    y, mean, rstd = torch.native_layer_norm(x.float(), x.shape[1:], gamma.float(), beta.float(), eps)
    return y.to(x.dtype), mean.view(-1), rstd.view(-1)


def rms_back(dy: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return centred_back(dy, x, gamma, torch.zeros_like(rstd), rstd, mean_free=True)[:2]


def centred_back(
    dy: torch.Tensor,
    x: torch.Tensor,
    gamma: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    *,
    mean_free: bool = False,
) -> tuple[torch.Tensor, ...]:
    xhat, wide = (x.float() - mean[:, None]) * rstd[:, None], dy.float()
    g = wide * gamma.float()
    dx = g - xhat * (g * xhat).mean(1, keepdim=True) - (0.0 if mean_free else g.mean(1, keepdim=True))
    made = dx * rstd[:, None], (wide * xhat).sum(0), wide.sum(0)
    return tuple(each.to(x.dtype) for each in made)


def soft_back(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (y.float() * (dy.float() - (dy.float() * y.float()).sum(-1, keepdim=True))).to(y.dtype)


def settings(columns: int) -> tuple[int, int]:
    return 2 ** (columns - 1).bit_length(), 4


def _liger_rms(x: Any, w: Any, eps: float, offset: float, casting_mode: str, row_mode: object) -> tuple[Any, ...]:
    assert (offset, casting_mode, row_mode) == (0.0, "gemma", None)
    y, rstd = rms(x, w, eps)
    return y, x, rstd, *settings(x.shape[1]), 1


def _liger_rms_back(
    dy: Any,
    x: Any,
    w: Any,
    rstd: Any,
    offset: float,
    casting_mode: int,
    block: int,
    warps: int,
    in_place: bool,
    row_mode: Any,
) -> tuple[Any, ...]:
    assert (offset, casting_mode, in_place, row_mode) == (0.0, 1, False, None)
    assert (block, warps) == settings(x.shape[1])
    return rms_back(dy, x, w, rstd)


def _liger_centred(x: Any, w: Any, b: Any, eps: float) -> tuple[Any, ...]:
    y, mean, rstd = centred(x, w, b, eps)
    return y, x, mean, rstd, *settings(x.shape[1])


def _liger_soft_back(dy: Any, y: Any, block: int, warps: int, several: bool) -> Any:
    assert (block, warps, several) == (*settings(y.shape[1]), False)
    return soft_back(dy, y)


def _liger_gated(gate: Any, up: Any) -> tuple[Any, ...]:
    return gate, up, (functional.silu(gate.float()) * up.float()).to(gate.dtype)


def _liger_sum(x: Any, r: Any, w: Any, eps: float, offset: float, casting_mode: str) -> tuple[Any, ...]:
    assert (offset, casting_mode) == (0.0, "gemma")
    y, rstd = rms(x + r, w, eps)
    return y, x + r, rstd, *settings(x.shape[1]), 2, casting_mode


def _liger_sum_back(
    dy: Any,
    dsum: Any,
    x: Any,
    w: Any,
    rstd: Any,
    offset: float,
    casting_mode: int,
    block: int,
    warps: int,
    stages: int,
    in_place: bool,
) -> tuple[Any, ...]:
    assert (offset, casting_mode, block, warps, stages, in_place) == (0.0, 1, *settings(x.shape[1]), 2, False)
    dx, dgamma = rms_back(dy, x.float(), w.float(), rstd)
    dx = (dx + dsum.float()).to(x.dtype)
    return dx, dx, dgamma.to(x.dtype)


def _gated(packed: Any) -> Any:
    gate, up = packed.float().chunk(2, -1)
    return (functional.silu(gate) * up).to(packed.dtype)


def _liger_gated_back(y: Any, dc: Any) -> Any:
    wide = y.float().requires_grad_()
    gate, up = wide.chunk(2, -1)
    return torch.autograd.grad(functional.silu(gate) * up, wide, dc.float())[0].to(y.dtype)


def _flashinfer_turned(positions: Any, q: Any, k: Any, size: int, table: Any, *, is_neox: bool) -> tuple[Any, ...]:
    assert table.dtype == torch.float32
    cos, sin = table[positions].chunk(2, -1)
    return tuple(_turned(x.view(len(x), -1, size), cos, sin, not is_neox).view_as(x) for x in (q, k))


def _turned(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Heads (tokens, heads, size) by angles (tokens, size / 2)."""
    cos, sin = cos[:, None], sin[:, None]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    made = first.float() * cos - second.float() * sin, second.float() * cos + first.float() * sin
    return (torch.stack(made, -1).flatten(-2) if interleaved else torch.cat(made, -1)).to(x.dtype)


def _quack_rms(x: Any, weight: Any, *, residual: Any = None, eps: float, store_rstd: bool) -> tuple[Any, ...]:
    total = x if residual is None else x + residual
    y, rstd = rms(total, weight, eps)
    return y, total, rstd if store_rstd else None


def _quack_rms_back(
    x: Any, w: Any, dy: Any, rstd: Any, *, dresidual_out: Any = None, has_residual: bool = False
) -> tuple[Any, ...]:
    assert has_residual == (dresidual_out is not None)
    dx, dgamma = rms_back(dy, x.float(), w.float(), rstd)
    dx = (dx + dresidual_out.float() if has_residual else dx).to(x.dtype)
    return dx, dgamma.to(x.dtype), None, dx if has_residual else None


def _quack_losses(logits: Any, targets: Any, *, ignore_index: int, return_lse: bool) -> tuple[Any, ...]:
    assert return_lse
    losses = functional.cross_entropy(logits.float(), targets, ignore_index=ignore_index, reduction="none")
    return losses, torch.logsumexp(logits.float(), 1)


def _quack_losses_back(logits: Any, targets: Any, of_rows: Any, lse: Any, *, ignore_index: int) -> Any:
    counted = targets != ignore_index
    share = (logits.float() - lse[:, None]).exp()
    share[torch.arange(len(targets))[counted], targets[counted]] -= 1
    return (share * (of_rows * counted)[:, None]).to(logits.dtype)


def _quack_turned(x: Any, cos: Any, sin: Any, *, interleaved: bool, conjugate: bool) -> Any:
    assert len(x) == 1
    assert cos.shape == sin.shape == (x.shape[1], x.shape[3] // 2)
    return _turned(x[0], cos, -sin if conjugate else sin, interleaved)[None]


def _quack_centred(x: Any, w: Any, b: Any, eps: float, *, return_rstd: bool, return_mean: bool) -> tuple[Any, ...]:
    assert w.dtype == b.dtype == torch.float32
    assert return_rstd
    assert return_mean
    y, mean, rstd = centred(x, w, b, eps)
    return y, rstd, mean


def _flashinfer_rms(x: Any, weight: Any, *, eps: float, out: Any) -> Any:
    return out.copy_(rms(x, weight, eps)[0])


def _flashinfer_centred(x: Any, gemma: Any, beta: Any, eps: float) -> Any:
    assert gemma.dtype == beta.dtype == torch.float32
    return centred(x, gemma, beta, eps)[0]


def _ao_product(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    assert x.dtype == weight.dtype == torch.int8
    assert scale.shape in ((1, 1), (len(x), 1))
    assert scale.dtype == torch.float32
    return (x.int() @ weight.int()).float() * scale


def _ao_integers(
    x: torch.Tensor,
    block: tuple[int, int],
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    to: torch.dtype,
    *ends: int,
) -> torch.Tensor:
    assert (block[0], len(scale) * block[1]) == x.shape
    assert (zero_point.shape, zero_point.dtype) == (scale.shape, torch.int32)
    assert not zero_point.any()
    assert ends == (-128, 127)
    return (x * (1.0 / scale)).round().clamp(*ends).to(to)


FAKES: dict[str, dict[str, Any]] = {
    "liger_kernel": {},
    "liger_kernel.ops": {},
    "liger_kernel.ops.utils": {"calculate_settings": settings},
    "liger_kernel.ops.softmax": {
        "_softmax_forward": lambda x: (torch.softmax(x, -1), *settings(x.shape[1]), False),
        "_softmax_backward": _liger_soft_back,
    },
    "liger_kernel.ops.rms_norm": {
        "rms_norm_forward": _liger_rms,
        "rms_norm_backward": _liger_rms_back,
        "_str_to_casting_mode": {"llama": 0, "gemma": 1, "none": -1},
    },
    "liger_kernel.ops.layer_norm": {
        "layer_norm_forward": _liger_centred,
        "layer_norm_backward": lambda dy, x, w, _b, mean, rstd: centred_back(dy, x, w, mean, rstd),
    },
    "liger_kernel.ops.fused_add_rms_norm": {
        "fused_add_rms_norm_forward": _liger_sum,
        "fused_add_rms_norm_backward": _liger_sum_back,
        "_str_to_casting_mode": {"llama": 0, "gemma": 1, "none": -1},
    },
    "liger_kernel.ops.swiglu": {
        "swiglu_forward": _liger_gated,
        "swiglu_fused_gate_up_forward": lambda y: (y, _gated(y)),
        "swiglu_fused_gate_up_backward": _liger_gated_back,
    },
    "torchao": {},
    "torchao.kernel": {"int_scaled_matmul": _ao_product},
    "torchao.quantization": {},
    "torchao.quantization.quant_primitives": {"quantize_affine": _ao_integers},
    "quack": {},
    "quack.softmax": {"softmax_fwd": lambda x: torch.softmax(x, -1), "softmax_bwd": soft_back},
    "quack.rmsnorm": {
        "rmsnorm_fwd": _quack_rms,
        "rmsnorm_bwd": _quack_rms_back,
        "layernorm_fwd": _quack_centred,
        "layernorm_bwd": lambda x, w, dy, rstd, mean: centred_back(dy, x, w, mean, rstd),
    },
    "quack.cross_entropy": {"cross_entropy_fwd": _quack_losses, "cross_entropy_bwd": _quack_losses_back},
    "quack.rotary": {"apply_rotary": _quack_turned},
    "flashinfer": {},
    "flashinfer.norm": {"rmsnorm": _flashinfer_rms, "layernorm": _flashinfer_centred},
    "flashinfer.activation": {"silu_and_mul": lambda packed, *, out: out.copy_(_gated(packed))},
    "flashinfer.rope": {"apply_rope_with_cos_sin_cache": _flashinfer_turned},
    "triton": {},
}
