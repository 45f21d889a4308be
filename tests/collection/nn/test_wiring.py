"""Operators and the catalogue's kernels: a kernel gets what its op declares, and what it writes is what is returned.

References play the kernels, on a CPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from harness import nn
from harness.collection.nn import _kernels
from harness.collection.ops.rows import softmax

ALL = [torch.float32, torch.float16, torch.bfloat16]
HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(4, 49), (2, 3, 64), (16,)])
def test_norms(tools, played, dtype, shape):
    size = shape[-1:]
    tools.compared(dtype, nn.layer_norm, lambda x, w, b: functional.layer_norm(x, size, w, b), shape, size, size)
    tools.compared(dtype, nn.rms_norm, lambda x, w: functional.rms_norm(x, size, w, 1e-5), shape, size)
    assert played == {"layer_norm": 1, "layer_norm_grad": 1, "rms_norm": 1, "rms_norm_grad": 1}


@pytest.mark.parametrize("eps", [1e-12, 1e-3, 1])
def test_norms_with_another_epsilon(tools, played, eps):
    def layer(x, w, b):
        return functional.layer_norm(x, (8,), w, b, eps)

    def rms(x, w):
        return functional.rms_norm(x, (8,), w, eps)

    small = tools.normal(3, 8).detach() * 1e-3
    for scale in (1.0, small):
        tools.compared(
            torch.float32,
            lambda x, w, b, s=scale: nn.layer_norm(x * torch.as_tensor(s).float(), w, b, eps),
            lambda x, w, b, s=scale: layer(x * torch.as_tensor(s).float(), w, b),
            *((3, 8), (8,), (8,)),
        )
    tools.compared(torch.float32, lambda x, w: nn.rms_norm(x, w, eps), rms, (3, 8), (8,))
    assert played == {"layer_norm": 2, "layer_norm_grad": 2, "rms_norm": 1, "rms_norm_grad": 1}


@pytest.mark.parametrize("eps", [0.0, 1e-30, float("inf")])
def test_an_epsilon_that_no_kernel_has(tools, played, eps):
    x, weight = tools.normal(3, 8, dtype=torch.float32), tools.normal(8, dtype=torch.float32)
    wanted = functional.layer_norm(x, (8,), weight, weight, eps)
    tools.assert_close([nn.layer_norm(x, weight, weight, eps)], [wanted], 1e-6)
    assert not played


def test_each_epsilon_has_its_kernels(monkeypatch):
    seen = []
    monkeypatch.setattr(_kernels, "launch_of", lambda _op, _like, call: seen.append(call.macros))
    monkeypatch.setattr(_kernels.OpKernels, "__call__", _kernels.OpKernels.found)
    x, weight = torch.ones(1, 4, 4, 8), torch.ones(8)
    for eps in (1e-5, 1e-12, 0.001, 1):
        nn.layer_norm(x, weight, weight, eps)
        nn.rms_norm(x, weight, eps)
        with torch.no_grad():
            nn.norm_partition(x, weight, weight, 2, 0, eps)
    wanted = [{}, {"EPS": "1e-12f"}, {"EPS": "0.001f"}, {"EPS": "1.0f"}]
    # Torch does the norm where there is no kernel, and then the partition asks for its own.
    assert seen == [macros for own in wanted for macros in (own, own, own, {})]


def test_kernels_are_compiled_with_the_macros_of_a_call(monkeypatch):
    given = []
    monkeypatch.setattr(_kernels.Context, "kernel", lambda _, *arguments: given.append(arguments))
    call = _kernels.KernelCall(softmax.OP, torch.float32, torch.device("cpu"), (), macros=(("EPS", "1.0f"),))
    for context in (call.context(), replace(call.context(), case=call.case)):
        context.kernel("a.cu", "a", {"SCALAR": "float"})
        context.kernel("a.cu", "a")
    assert given == [("a.cu", "a", {"SCALAR": "float", "EPS": "1.0f"}), ("a.cu", "a", {"EPS": "1.0f"})] * 2


@pytest.mark.parametrize("dtype", ALL)
def test_softmax(tools, played, dtype):
    tools.compared(dtype, nn.softmax, lambda x: torch.softmax(x, -1), (2, 3, 17))
    tools.compared(dtype, lambda x: nn.softmax(x, 1), lambda x: torch.softmax(x, 1), (2, 3, 17))
    assert played == {"softmax": 1, "softmax_grad": 1}


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shift", [0, 1])
def test_windows(tools, played, dtype, shift):
    def there_and_back(x):
        return nn.window_reverse(nn.window_partition(x, 2, shift) * 2, 4, 6, 2, shift)

    tools.compared(dtype, there_and_back, lambda x: x * 2, (2, 4, 6, 3))
    assert played == {"window_partition": 2, "window_reverse": 2}


def test_norm_partition_is_one_kernel_without_gradients(tools, played):
    x, weight, bias = tools.normal(2, 4, 4, 8), tools.normal(8), tools.normal(8)
    wanted = nn.norm_partition(x, weight, bias, 2, 1)
    with torch.no_grad():
        one = nn.norm_partition(*(given.float() for given in (x, weight, bias)), 2, 1)
    tools.assert_close([one], [wanted.detach()], 1e-5)
    assert played == {"layer_norm_window_partition": 1}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("masks", [None, 2])
def test_attention_of_squares(tools, played, dtype, masks):
    mask = None if masks is None else tools.normal(masks, 9, 9, dtype=dtype, wanted=False)
    wide = None if mask is None else mask.double()

    def theirs(qkv, bias):
        return tools.attention(qkv, bias, wide)

    tools.compared(dtype, lambda qkv, bias: nn.window_attention(qkv, bias, mask), theirs, (4, 9, 2 * 3 * 32), (2, 9, 9))
    assert played == {"window_attention_packed": 1, "window_attention_grad": 1}


def test_attention_of_other_windows(tools, played):
    tools.compared(torch.float16, nn.window_attention, tools.attention, (4, 6, 2 * 3 * 32), (2, 6, 6))
    assert played == {"window_attention": 1, "window_attention_grad": 1}


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("with_residual", [True, False])
def test_batch_norm(tools, played, dtype, order, with_residual):
    x = tools.normal(3, 8, 4, 5, dtype=dtype, wanted=False).contiguous(memory_format=order).requires_grad_()
    residual = tools.normal(3, 8, 4, 5, dtype=dtype)
    vectors = [tools.normal(8, dtype=torch.float32) for _ in range(2)]
    running = [[torch.zeros(8), torch.ones(8)] for _ in range(2)]

    def ours(x, weight, bias, *residual):
        return nn.batch_norm_add_relu(x, residual[0] if residual else None, *running[0], weight, bias)

    def theirs(x, weight, bias, *residual):
        mean, var = (one.double() for one in running[1])
        y = functional.batch_norm(x, mean, var, weight, bias, training=True)
        running[1][:] = mean, var
        return functional.relu(y + residual[0] if residual else y)

    inputs = [x, *vectors, *([residual] if with_residual else [])]
    exact = [one.detach().double().requires_grad_() for one in inputs]
    wanted = tools.results(theirs, *exact)
    made = tools.results(ours, *inputs)
    assert made[0].is_contiguous(memory_format=order)
    assert made[1].is_contiguous(memory_format=order)
    tools.assert_close(made, wanted, tools.tolerance[dtype])
    tools.assert_close(running[0], running[1], 1e-5)
    assert played == {"bn_add_relu": 1, "bn_add_relu_grad": 1}


@pytest.mark.parametrize("has_residual", [True, False])
def test_batch_norm_keeps_less_than_torch(tools, played, has_residual):
    x, residual = (tools.normal(4, 32, 16, 16, dtype=torch.float32) for _ in range(2))
    vectors = [tools.normal(32, dtype=torch.float32) for _ in range(2)]
    running = [torch.zeros(32), torch.ones(32)]

    def theirs():
        y = functional.batch_norm(x, *running, *vectors, training=True)
        return functional.relu(y + residual if has_residual else y)

    def ours():
        return nn.batch_norm_add_relu(x, residual if has_residual else None, *running, *vectors)

    def kept(function):
        storages = {}

        def keep(tensor):
            storages[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            y = function()
        torch.autograd.grad(y, [x, *vectors, *([residual] if has_residual else [])], torch.ones_like(y))
        return sum(storages.values())

    vectors_and_bits = 4 * 4 * 32 + x.numel() // 8
    assert kept(ours) <= x.nbytes + vectors_and_bits < kept(theirs)
    assert played == {"bn_add_relu": 1, "bn_add_relu_grad": 1}


def test_running_statistics_are_updated_where_they_lie(tools, played):
    x, vector = tools.normal(3, 8, 4, 5, dtype=torch.float32), torch.ones(8)
    mean, var = torch.zeros(16)[::2], torch.ones(8, dtype=torch.float16)
    wanted = [torch.zeros(8), torch.ones(8)]
    functional.batch_norm(x, *wanted, training=True)
    own = [torch.zeros(8), torch.ones(8)]
    nn.batch_norm_add_relu(x, None, *own, vector, vector)
    tools.assert_close(own, wanted, 1e-6)
    nn.batch_norm_add_relu(x, None, mean, var, vector, vector)
    tools.assert_close([mean, var], wanted, 1e-3)
    assert played == {"bn_add_relu": 2}


@pytest.mark.parametrize("dtype", ALL)
def test_dropout_draws_the_same_on_both_ways(tools, played, monkeypatch, dtype):
    x, bias, residual = tools.normal(5, 7, dtype=dtype), tools.normal(7, dtype=dtype), tools.normal(5, 7, dtype=dtype)

    def three(x, bias, residual):
        y = nn.dropout_add(nn.dropout(x, 0.3), residual, 0.5)
        return nn.bias_dropout_residual(y, bias, residual, 0.25)

    torch.manual_seed(7)
    by_kernels = tools.results(three, x, bias, residual)
    assert played == {"dropout": 1, "dropout_add": 1, "bias_dropout_residual": 1, "dropout_grad": 3}
    monkeypatch.setattr(_kernels, "launch_of", lambda *_: None)
    torch.manual_seed(7)
    tools.assert_close(by_kernels, tools.results(three, x, bias, residual), tools.tolerance[dtype])


def test_inputs_need_not_be_contiguous(tools, played):
    x, weight = tools.normal(6, 8, dtype=torch.float32, wanted=False), tools.normal(16, dtype=torch.float32)
    every = weight[::2]
    wanted = functional.layer_norm(x.T.contiguous().T, (8,), every, every)
    tools.assert_close([nn.layer_norm(x.T.contiguous().T, every, every)], [wanted], 1e-5)
    tools.assert_close([nn.softmax(x.T)], [torch.softmax(x.T, -1)], 1e-5)
    tools.assert_close([nn.dropout(x.T, 1.0)], [torch.zeros(8, 6)], 0.0)


def test_a_kernel_is_not_asked_for_what_it_cannot_do():
    assert _kernels.OpKernels(softmax.OP, lambda x: _kernels.Described({"M": 2, "N": 3}))(torch.empty(2, 3)) is None
    call = _kernels.KernelCall(softmax.OP, torch.float64, torch.device("cpu"), (("M", 2), ("N", 3)))
    assert call.obstacle == "kernels run on GPUs, not on cpu"
    assert _kernels.KernelCall(softmax.OP, torch.float64, torch.device("cuda", 0), call.sizes).obstacle == (
        "softmax has no kernel for float64"
    )
