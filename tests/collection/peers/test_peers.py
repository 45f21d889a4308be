"""Libraries beside ours: what is called, with which arguments, and what it gives; modules in torch stand for them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from harness import check, cuda, runner
from harness.collection import peers
from harness.cuda.assumed import KNOWN
from harness.model import Case, Job, Timing
from harness.ops import Catalogue, Context
from tests.one_test import one_test

EPS = 1e-5
FILES = [file.stem for file in Path(peers.__file__).parent.glob("[!_]*.py")]
LIBRARIES = {name: importlib.import_module(f"harness.collection.peers.{name}").LIBRARY for name in FILES}
NAMES = {"triton": "triton_tutorial"}
"""Names of the variants of a file, where they aren't the file's own."""


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
    assert is_neox
    cos, sin = table[positions][:, None].chunk(2, -1)

    def turned(flat: Any) -> Any:
        first, second = flat.view(len(flat), -1, size).float().chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(flat.dtype).view_as(flat)

    return turned(q), turned(k)


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
    "quack": {},
    "quack.softmax": {"softmax_fwd": lambda x: torch.softmax(x, -1), "softmax_bwd": soft_back},
    "quack.rmsnorm": {
        "rmsnorm_fwd": _quack_rms,
        "rmsnorm_bwd": _quack_rms_back,
        "layernorm_fwd": _quack_centred,
        "layernorm_bwd": lambda x, w, dy, rstd, mean: centred_back(dy, x, w, mean, rstd),
    },
    "quack.cross_entropy": {"cross_entropy_fwd": _quack_losses, "cross_entropy_bwd": _quack_losses_back},
    "flashinfer": {},
    "flashinfer.norm": {"rmsnorm": _flashinfer_rms, "layernorm": _flashinfer_centred},
    "flashinfer.activation": {"silu_and_mul": lambda packed, *, out: out.copy_(_gated(packed))},
    "flashinfer.rope": {"apply_rope_with_cos_sin_cache": _flashinfer_turned},
    "triton": {},
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All libraries, as modules of this file."""
    for name, content in FAKES.items():
        module = ModuleType(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


OPS = Catalogue()


def variants_of(file: str) -> list[str]:
    """'op/variant' of each op that has the library."""
    name = NAMES.get(file, file)
    return [f"{op.name}/{name}" for op in OPS.values() if name in op.variants]


CALLED = [each for file in FILES if file != "triton" for each in variants_of(file)]


CHOICES = {
    "swiglu": {"layout": "packed"},
    "swiglu_grad": {"layout": "packed"},
    "rope": {"pairs": "halves", "way": "forward"},
}


def case_of(which: str, dtype: str = "float16", columns: int = 64, **choices: str) -> Case:
    """A case of a few rows of so many columns, or heads of so many elements."""
    op, variant = which.split("/")
    sizes = dict(zip(OPS[op].symbols, (9, 4, 2, columns, 16) if op == "rope" else (9, columns), strict=True))
    return Case(op, variant, dtype, tuple(sizes.items()), tuple((CHOICES.get(op, {}) | choices).items()))


def context_of(case: Case) -> Context:
    place, seeded = torch.device("cpu"), torch.Generator().manual_seed(1)
    return Context(case, getattr(torch, case.dtype), place, seeded, OPS[case.op])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("which", CALLED)
def test_a_library_is_called_as_it_wants_and_gives_what_the_op_wants(which: str, dtype: str) -> None:
    case = case_of(which, dtype)
    op = OPS[case.op]
    variant = op.variants[case.variant]
    with cuda.assuming(KNOWN["sm_90"]):
        if variant.unsupported and (reason := variant.unsupported(case)):
            pytest.skip(reason)
    ctx = context_of(case)
    inputs = check.make_inputs(ctx)
    tensors = check.new_set(ctx, variant, inputs)
    returned = variant.prepare(ctx)(tensors)
    after = check.collect(op, variant, tensors, returned if variant.returns else None)
    assert check.complaint(ctx, variant, inputs, check.decoded(ctx, variant, after)) is None


def test_every_file_has_variants_and_is_imported() -> None:
    assert sorted(peers.__all__) == sorted(FILES)
    for file in FILES:
        assert variants_of(file), file
        for which in variants_of(file):
            variant = OPS[which.split("/")[0]].variants[which.split("/")[1]]
            assert variant.role == "peer"
            assert variant.devices == ("cuda",)


@pytest.mark.parametrize("file", FILES)
def test_one_that_is_not_installed_says_how_to_install_it(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = LIBRARIES[file]
    every = [(_variant(*which.split("/")), case_of(which)) for which in variants_of(file)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    for variant, case in every:
        reason = variant.unsupported(case)
        assert reason == f"{library.name} isn't installed: pip install '{library.package}'"


def _variant(op: str, name: str) -> Any:
    return OPS[op].variants[name]


@pytest.mark.usefixtures("installed")
@one_test(
    ("which", "dtype", "columns", "arch", "words"),
    [
        ("softmax/liger", "float16", 65_536, "sm_80", None),
        ("softmax/liger", "float16", 65_537, "sm_80", "rows of up to 65536 elements"),
        ("softmax/triton_tutorial", "float16", 65_537, "sm_80", "rows of up to 65536 elements"),
        ("layer_norm/triton_tutorial", "float16", 65_537, "sm_80", None),
        ("swiglu/liger", "float16", 65_537, "sm_90", "rows of up to 65536 elements"),
        ("rope/flashinfer", "float16", 80, "sm_90", "heads of 64, 128, 256, 512"),
        ("rope/flashinfer", "bfloat16", 128, "sm_80", None),
        ("swiglu/flashinfer", "float16", 63, "sm_90", "multiple of 16 bytes"),
        ("cross_entropy/quack", "float16", 64, "sm_80", "needs compute capability 9.0"),
        ("softmax/quack", "float16", 64, "sm_80", "needs compute capability 9.0"),
        ("softmax/quack", "float16", 64, "sm_90", None),
        ("rms_norm/flashinfer", "float32", 64, "sm_90", "takes float16 and bfloat16 only"),
        ("layer_norm/flashinfer", "float16", 64, "sm_90", "takes bfloat16 only"),
    ],
)
def test_what_a_library_does_not_take(which: str, dtype: str, columns: int, arch: str, words: str | None) -> None:
    op, name = which.split("/")
    with cuda.assuming(KNOWN[arch]):
        reason = _variant(op, name).unsupported(case_of(which, dtype, columns))
    assert reason is None if words is None else words in reason


@pytest.mark.usefixtures("installed")
@one_test(
    ("which", "choices", "words"),
    [
        ("swiglu/liger", {"layout": "separate"}, None),
        ("swiglu_grad/liger", {"layout": "separate"}, "over the tensors"),
        ("swiglu/flashinfer", {"layout": "separate"}, "one tensor"),
        ("rope/flashinfer", {"way": "backward"}, "no backward"),
        ("rope/flashinfer", {"pairs": "interleaved"}, None),
    ],
)
def test_which_choices_a_library_takes(which: str, choices: dict[str, str], words: str | None) -> None:
    reason = _variant(*which.split("/")).unsupported(case_of(which, **choices))
    assert reason is None if words is None else words in reason


@pytest.mark.usefixtures("installed")
def test_two_tensors_are_what_liger_gets_too() -> None:
    ctx = context_of(case_of("swiglu/liger", layout="separate"))
    inputs = check.make_inputs(ctx)
    (y,) = _variant("swiglu", "liger").prepare(ctx)(inputs)
    assert torch.equal(y, _liger_gated(inputs.gate, inputs.up)[2])


@pytest.mark.gpu
@pytest.mark.parametrize("which", [each for file in FILES for each in variants_of(file)])
def test_the_real_library_is_right(which: str) -> None:
    timing = Timing(timeout=120.0)
    cases = [case_of(which, dtype, columns) for dtype in ("bfloat16", "float32") for columns in (64, 1000, 4096)]
    heard = SimpleNamespace(**dict.fromkeys(("planned", "note", "limited", "started", "finished"), lambda *_: None))
    found = runner.check([Job(case, timing) for case in cases], "cuda", (), heard)
    assert {each.status for each in found} <= {"ok", "unsupported"}, [each.error for each in found]
