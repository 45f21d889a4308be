"""The functions of a decoder on a GPU: that kernels do the work, and that values and gradients are right."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from harness.collection import nn

pytestmark = pytest.mark.gpu
ALL = [torch.float32, torch.float16, torch.bfloat16]
ANGLES = [torch.rand(64, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1 for _ in range(2)]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(1, 8), (33, 49), (2, 100, 4096), (16, 14_336)])
def test_rms_norm_with_a_residual(tools, dtype, shape):
    size = shape[-1:]

    def ours(x, r, w):
        y, total = nn.add_rms_norm(x, r, w)
        return y * total

    def torchs(x, r, w):
        total = x + r
        return functional.rms_norm(total, size, w, 1e-5) * total

    with tools.launches(add_rms_norm=1, add_rms_norm_grad=1):
        tools.compared(dtype, ours, torchs, shape, shape, size, device="cuda")


@pytest.mark.parametrize("dtype", ALL)
def test_swiglu(tools, dtype):
    with tools.launches(swiglu=1, swiglu_grad=1):
        tools.compared(dtype, nn.swiglu, lambda g, u: functional.silu(g) * u, (5, 77), (5, 77), device="cuda")
    with tools.launches(swiglu=1, swiglu_grad=1):
        tools.compared(
            dtype, nn.swiglu, lambda x: functional.silu(x[..., :512]) * x[..., 512:], (3, 7, 1024), device="cuda"
        )


@pytest.mark.parametrize("dtype", ALL)
def test_rope(tools, dtype):
    cos, sin = (table.cuda() for table in ANGLES)

    def ours(q, k):
        rotated, others = nn.rope(q, k, cos, sin)
        return torch.cat((rotated, others), -2)

    def torchs(q, k):
        both = torch.cat((q, k), -2)
        first, second = both.chunk(2, -1)
        c, s = cos.to(both.dtype)[:, None], sin.to(both.dtype)[:, None]
        return torch.cat((first * c - second * s, second * c + first * s), -1)

    with tools.launches(rope=2):
        tools.compared(dtype, ours, torchs, (2, 64, 8, 64), (2, 64, 2, 64), device="cuda")


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("ignored", [-100, 3])
def test_cross_entropy(tools, dtype, ignored):
    targets = torch.randint(0, 1001, (40,), device="cuda")
    targets[::3] = ignored
    logits = torch.randn((40, 1001), dtype=dtype, device="cuda", requires_grad=True)
    with tools.launches(cross_entropy=1, cross_entropy_grad=1):
        ours = nn.cross_entropy(logits, targets, ignored)
        (got,) = torch.autograd.grad(3 * ours, logits)
    wide = logits.detach().double().requires_grad_()
    wanted = functional.cross_entropy(wide, targets, ignore_index=ignored)
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)
    (slopes,) = torch.autograd.grad(3 * wanted, wide)
    torch.testing.assert_close(got.double(), slopes, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("dtype", ALL)
def test_linear_cross_entropy_and_an_embedding(tools, dtype):
    weight = torch.randn((1000, 64), dtype=dtype, device="cuda").mul_(0.2).requires_grad_()
    ids, targets = torch.randint(0, 1000, (2, 300), device="cuda")
    with tools.launches(cross_entropy_in_place=3, embedding_grad=1):
        ours = nn.linear_cross_entropy(nn.embedding(ids, weight, 5), weight, targets, chunk=100)
        (got,) = torch.autograd.grad(ours, weight)
    wide = weight.detach().double().requires_grad_()
    wanted = functional.cross_entropy(functional.embedding(ids, wide, 5) @ wide.T, targets)
    (slopes,) = torch.autograd.grad(wanted, wide)
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(got.double(), slopes, rtol=5e-2, atol=1e-4)


@pytest.mark.parametrize("to", ["e4m3", "int8"])
def test_rms_norm_in_8_bits(tools, to):
    x, residual = torch.randn((2, 50, 4096), device="cuda", dtype=torch.bfloat16)
    weight = torch.rand(4096, device="cuda", dtype=torch.bfloat16) + 0.5
    with tools.launches(add_rms_norm_quantize=1):
        q, scale, total = nn.add_rms_norm_quantize(x, residual, weight, to=to)
    y = functional.rms_norm(total.double(), [4096], weight.double(), 1e-5)
    step = scale / 2 if to == "int8" else y.abs() / 16 + scale * 2**-10
    assert bool(((q.double() * scale - y).abs() <= step * 1.01).all())


def test_a_layer_in_a_graph(tools):
    x, residual, weight = (torch.randn(shape, device="cuda") for shape in ((32, 256), (32, 256), 256))

    def layer():
        y, total = nn.add_rms_norm(x, residual, weight)
        return nn.swiglu(y) + total[:, :128]

    wanted = layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = layer()
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(made, layer())
    assert not torch.equal(made, wanted)
