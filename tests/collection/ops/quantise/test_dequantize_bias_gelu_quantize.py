"""dequantize_bias_gelu_quantize: what it compiles, and its GELU; test_quantise.py calls the kernels."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from harness.collection.ops.quantise import dequantize_bias_gelu_quantize as op
from harness.paths import data

COMPILED = [{"M": 4, "C": c, "scales": scales} for c in (96, 97) for scales in ("tensor", "channel")]


def fast_gelu(x):
    """The arithmetic of fast_gelu in gelu.cuh: float32, each step rounded once."""
    import torch

    text = (data("kernels") / "quantise" / "gelu.cuh").read_text()
    first, *others = (float(number) for number in re.findall(r"log2 = (?:fmaf\(log2, t, )?(-?[\d.e+-]+)f", text))
    assert len(others) == 7
    t = x.abs().clamp(max=8.0)
    log2 = torch.full_like(t, first)
    for coefficient in others:
        log2 = (log2.double() * t.double() + torch.tensor(coefficient, dtype=torch.float32).double()).float()
    share = torch.exp2(log2.double()).float()
    return (x.clamp(min=0).double() - t.double() * share.double()).float()


@pytest.mark.slow  # test_every_op.py has the baselines
def test_the_fast_gelu_is_right_where_the_check_says_so():
    """The hardware's exp2 is off by 2^-22 at most, of a share that is below a half."""
    import torch

    x = torch.cat([torch.linspace(-12, 12, 2_000_001), torch.randn(100_000) / 1000, torch.tensor([1e4, -1e4, 0.0])])
    wanted = torch.nn.functional.gelu(x.double())
    off = (fast_gelu(x).double() - wanted).abs()
    from_exp2 = 2**-22 * 0.5 * x.double().abs()
    assert bool((off + from_exp2 <= op._GELU * x.double().abs() + 1e-12).all())


def test_the_slope_of_gelu():
    x = [k / 1000 for k in range(-6000, 6000)]
    gelu = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    assert max(abs(b - a) for a, b in pairwise(gelu)) * 1000 <= op._STEEPEST


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["separate", "fused", "tuned"])
def test_values_from_far_below_to_far_above_0(launch, variant):
    """sw gives acc a step of 1/1000, sy makes the whole range visible; in float32 the steps round little."""
    import torch

    acc = torch.arange(-12_000, 12_000, device="cuda", dtype=torch.int32).view(24, 1000)
    one, sw = torch.ones(1, device="cuda"), torch.full((1,), 1e-3, device="cuda")
    for sy in (0.1, 0.0013, 1e-4):
        y = torch.full((24, 1000), 77, dtype=torch.int8, device="cuda")
        tensors = {"acc": acc, "sx": one, "sw": sw, "bias": torch.zeros(1000, device="cuda"), "sy": one * sy, "y": y}
        launch(op.OP.name, variant, "float32", {"M": 24, "C": 1000, "scales": "tensor"}, **tensors)
        wanted = (torch.nn.functional.gelu(acc.double() * sw.double()) / (one * sy).double()).round().clamp(-128, 127)
        off = (y.double() - wanted).abs()
        assert float(off.max()) <= 1
        assert float(off.mean()) < 1e-2
