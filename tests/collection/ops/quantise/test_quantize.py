"""quantize: what it compiles, and values at the boundaries on a GPU, exactly; test_quantise.py has other values."""

from __future__ import annotations

import math

import pytest

COMPILED = [{"M": 4, "C": c, "scales": scales} for c in (96, 97) for scales in ("tensor", "channel")]
OURS = ["separate", "fused", "tuned"]
# Values over their scale, and the integers; the smallest type has all of them.
BOUNDARIES = {
    0.0: 0,
    0.5: 0,
    1.5: 2,
    2.5: 2,
    -0.5: 0,
    -1.5: -2,
    -2.5: -2,
    126.0: 126,
    127.0: 127,
    127.5: 127,
    128.0: 127,
    1000.0: 127,
    -127.0: -127,
    -127.5: -128,
    -128.0: -128,
    -129.0: -128,
    -1000.0: -128,
    math.inf: 127,
    -math.inf: -128,
    math.nan: 0,
}


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("scales", ["tensor", "channel"])
@pytest.mark.parametrize("scale", [1.0, 0.25, 8.0])
def test_halves_go_to_the_even_integer_and_the_ends_saturate(launch, variant, scales, scale, dtype):
    """The scale is a power of two, so that no division rounds."""
    import torch

    values = torch.tensor(list(BOUNDARIES), device="cuda").repeat(1000)
    wanted = torch.tensor(list(BOUNDARIES.values()), device="cuda", dtype=torch.int8).repeat(1000)
    for columns in (20, 1000):
        x = (values * scale).to(getattr(torch, dtype)).view(-1, columns)
        y = torch.full_like(x, 77, dtype=torch.int8)
        scale_of = torch.full((columns if scales == "channel" else 1,), scale, device="cuda")
        sizes = {"M": len(x), "C": columns, "scales": scales}
        launch("quantize", variant, dtype, sizes, x=x, scale=scale_of, y=y)
        assert torch.equal(y.view(-1), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_scale_of_0_saturates_by_the_sign(launch, variant, zero, dtype):
    import torch

    x = torch.tensor([1.0, -1.0, 0.0, math.inf, -math.inf, math.nan], device="cuda").repeat(100)
    x = x.to(getattr(torch, dtype)).view(1, -1)
    y = torch.full_like(x, 77, dtype=torch.int8)
    scale = torch.full((1,), zero, device="cuda")
    launch("quantize", variant, dtype, {"M": 1, "C": x.shape[1], "scales": "tensor"}, x=x, scale=scale, y=y)
    wanted = [127, -128, 0, 127, -128, 0] if math.copysign(1, zero) > 0 else [-128, 127, 0, -128, 127, 0]
    assert y.view(-1)[:6].tolist() == wanted
    assert torch.equal(y.view(-1, 6), y.view(-1, 6)[:1].expand(100, 6))
