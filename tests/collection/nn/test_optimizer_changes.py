"""AdamW and unscale_ where parameters change under them, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from harness.collection import nn
from harness.collection.nn import _adamw, _swin_scales, _unscale


@pytest.mark.usefixtures("kernels")
def test_a_backward_notices_that_weights_and_gradients_have_changed_since_its_forward():
    weight, other = torch.ones(3000, requires_grad=True), torch.ones(3000, requires_grad=True)
    optimizer = nn.AdamW([weight])
    loss = (weight * other).sum()
    weight.grad = torch.ones(3000)
    of_gradient = (weight.grad * other).sum()
    _unscale._by_kernel([weight.grad], torch.tensor(0.5), torch.zeros(()))
    optimizer.step()
    for changed in (loss, of_gradient):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            changed.backward()


@pytest.mark.usefixtures("kernels")
def test_a_parameter_that_gets_memory_of_another_size_gets_another_table():
    weight = torch.ones(5000, requires_grad=True)
    optimizer = nn.AdamW([weight])
    for count in (5000, 300):
        weight.grad = None
        weight.data = torch.ones(count)
        weight.grad = torch.ones(count)
        optimizer.state.clear()
        optimizer.step()
    assert [table.layout.pieces for table in optimizer._tables.values()] == [12, 3]


@pytest.mark.usefixtures("kernels")
def test_few_tables_are_kept_whatever_has_gradients(monkeypatch):
    monkeypatch.setattr(_adamw, "_TABLES", 2)
    weights = [torch.ones(8, requires_grad=True) for _ in range(4)]
    optimizer = nn.AdamW(weights)
    for weight in weights:
        optimizer.zero_grad()
        weight.grad = torch.ones(8)
        optimizer.step()
    assert len(optimizer._tables) == 2


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_parameter_may_change_its_order_between_steps(dtype):
    slopes = torch.arange(16.0).view(2, 2, 2, 2).to(dtype)
    steps = []
    for order in (torch.contiguous_format, torch.channels_last):
        weight = torch.ones(2, 2, 2, 2, dtype=dtype, requires_grad=True)
        optimizer = nn.AdamW([weight])
        for factor in (1, -0.5):
            weight.grad = slopes.mul(factor).contiguous(memory_format=order if factor < 0 else torch.contiguous_format)
            optimizer.step()
            weight.data = weight.data.contiguous(memory_format=order)
            weight.grad = None
        steps.append(weight.detach())
    assert torch.equal(*steps)


def test_what_it_makes_no_steps_with_is_refused():
    whole = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    whole.grad = torch.ones_like(whole)
    half = torch.ones(3, dtype=torch.float16, requires_grad=True)
    half.grad_dtype = None
    half.grad = torch.ones(3)
    for weight, reason in ((whole, "no complex"), (half, "make them alike")):
        with pytest.raises(RuntimeError, match=reason):
            nn.AdamW([weight]).step()


@pytest.mark.usefixtures("kernels")
def test_lists_of_several_devices_are_refused():
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    optimizer = nn.AdamW([weight])
    optimizer.step()
    optimizer.state[weight]["exp_avg"] = torch.zeros(3, device="meta")
    with pytest.raises(RuntimeError, match="lies on meta, other tensors on cpu"):
        optimizer.step()


@pytest.mark.usefixtures("kernels")
def test_tensors_without_memory_of_their_own_are_refused():
    grad = TwoTensor(torch.ones(3), torch.ones(3))
    with pytest.raises(RuntimeError, match="is a TwoTensor without memory"):
        _unscale._by_kernel([grad], torch.tensor(0.5), torch.zeros(()))


@pytest.mark.usefixtures("kernels")
def test_numbers_of_steps_are_float32_whatever_torchs_default_is():
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    optimizer = nn.AdamW([weight])
    usual = torch.get_default_dtype()
    try:
        for wrong in (torch.float64, torch.bfloat16):
            torch.set_default_dtype(wrong)
            optimizer.state.clear()
            optimizer.step()
            assert optimizer.state[weight]["step"].dtype == torch.float32
            optimizer.load_state_dict(optimizer.state_dict())
            assert optimizer.state[weight]["step"].dtype == torch.float32
            assert {scale.dtype for scale in _swin_scales._scales(torch.nn.Linear(2, 2), [1.0, 1.0])} == {torch.float32}
    finally:
        torch.set_default_dtype(usual)
