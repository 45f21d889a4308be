"""Our kernels in a patched block on a GPU: they run, also compiled, until a module in their place gets a hook."""

from __future__ import annotations

import copy

import pytest
import torch

from harness import nn as ours
from harness.collection.nn._kernels import LAUNCHED
from tests.collection.nn.test_patch_of_others import Block
from tests.collection.nn.test_patched_projections import Attention

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("compiled", [False, True])
def test_ours_run_until_a_module_gets_a_hook(compiled):
    torch.manual_seed(0)
    model = Block().cuda()
    plain, x = copy.deepcopy(model), torch.randn(4, 3, 5, 5, device="cuda")
    assert ours.patch(model).swapped
    called = torch.compile(model, fullgraph=True) if compiled else model

    def launched(function):
        before = LAUNCHED.copy()
        torch.testing.assert_close(function(x), plain(x), rtol=1e-2, atol=1e-2)
        return (LAUNCHED - before).keys()

    assert launched(called) == {"bn_add_relu", "bias_dropout_residual"}
    calls = []
    model.bn.register_forward_hook(lambda *_: calls.append("bn"))
    assert launched(model) == {"bias_dropout_residual"}
    assert calls == ["bn"]


@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, torch.nn.RMSNorm])
def test_of_a_float32_norm_under_autocast_a_compiler_has_the_forward_and_we_the_backward(norm):
    torch.manual_seed(0)
    model = torch.nn.Sequential(norm(768, eps=1e-6)).cuda()
    plain = copy.deepcopy(model)
    x, wanted = (torch.randn(64, 197, 768, device="cuda") for _ in range(2))
    assert ours.patch(model).swapped

    def slopes(model, call):
        given = x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            y = torch.nn.functional.linear(call(given), torch.eye(768, device="cuda"))
        return torch.autograd.grad((y.float() * wanted).sum(), [given, *model.parameters()])

    before = LAUNCHED.copy()
    made = slopes(model, torch.compile(model, fullgraph=True))
    assert (LAUNCHED - before).keys() == {"layer_norm_grad" if norm is torch.nn.LayerNorm else "rms_norm_grad"}
    for one, other in zip(made, slopes(plain, plain), strict=True):
        assert (one - other).norm() < 1e-2 * other.norm()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("side", "dtype"), [(16, torch.bfloat16), (4, torch.float16), (14, torch.bfloat16)])
def test_a_convolution_into_patches_has_the_numbers_and_the_gradients_of_torchs(side, dtype, compiled):
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 96, side, side).cuda()
    plain = copy.deepcopy(model)
    x = torch.randn(2, 3, 4 * side, 5 * side, device="cuda")
    assert ours.patch(model).swapped

    def slopes(model, call):
        with torch.autocast("cuda", dtype):
            y = call(x)
        return y.float(), *torch.autograd.grad(y.float().square().mean(), [*model.parameters()])

    made = slopes(model, torch.compile(model, fullgraph=True) if compiled else model)
    for one, other in zip(made, slopes(plain, plain), strict=True):
        assert (one - other).norm() < 1e-2 * other.norm()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_product_of_queries_keys_and_values_has_the_numbers_and_the_gradients_of_three(dtype, bias):
    torch.manual_seed(0)
    model = Attention(bias).cuda()
    plain, x = copy.deepcopy(model), torch.randn(4, 100, 12, device="cuda")
    assert [one.now for one in ours.patch(model).swapped] == ["one product"]

    def slopes(model, call):
        given = x.clone().requires_grad_()
        with torch.autocast("cuda", dtype):
            y = call(given)
        return y.float(), *torch.autograd.grad(y.float().sin().sum(), [given, *model.parameters()])

    made = slopes(model, torch.compile(model, fullgraph=True))
    for one, other in zip(made, slopes(plain, plain), strict=True):
        assert (one - other).norm() < 2e-2 * other.norm()
