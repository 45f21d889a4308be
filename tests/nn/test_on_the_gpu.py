"""Operators on a GPU: that kernels do the work, that results are right, and the same compiled and in a graph."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from harness import nn
from harness.models import MODELS, swin
from harness.nn import _kernels

pytestmark = pytest.mark.gpu
ALL = [torch.float32, torch.float16, torch.bfloat16]
HALVES = [torch.float16, torch.bfloat16]


@contextmanager
def launches(**wanted: int) -> Iterator[None]:
    """Exactly so many launches of these ops, and of no others, are made inside."""
    before = dict(_kernels.LAUNCHED)
    yield
    made = {name: count - before.get(name, 0) for name, count in _kernels.LAUNCHED.items()}
    assert {name: count for name, count in made.items() if count} == wanted


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True)


# ---- Results.


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(1, 8), (33, 49), (2, 100, 96), (7, 1001), (16, 16384), (5, 20_000), (768,)])
def test_norms_and_softmax(tools, dtype, shape):
    size = shape[-1:]

    def norm(x, w, b):
        return functional.layer_norm(x, size, w, b)

    with launches(layer_norm=1, layer_norm_grad=1):
        tools.compared(dtype, nn.layer_norm, norm, shape, size, size, device="cuda")
    with launches(rms_norm=1, rms_norm_grad=1):
        tools.compared(
            dtype, nn.rms_norm, lambda x, w: functional.rms_norm(x, size, w, 1e-5), shape, size, device="cuda"
        )
    with launches(softmax=1, softmax_grad=1):
        tools.compared(dtype, nn.softmax, lambda x: torch.softmax(x, -1), shape, device="cuda")


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(
    ("shape", "window", "shift"), [((2, 14, 21, 96), 7, 3), ((1, 4, 4, 3), 4, 0), ((3, 6, 4, 1), 2, 1)]
)
def test_windows(tools, dtype, shape, window, shift):
    _, height, width, channels = shape

    def ours(x):
        return nn.window_reverse(nn.window_partition(x, window, shift) * 2, height, width, window, shift)

    with launches(window_partition=2, window_reverse=2):
        tools.compared(dtype, ours, lambda x: x * 2, shape, device="cuda")
    x, weight, bias = (normal(*size, dtype=dtype) for size in (shape, (channels,), (channels,)))
    assert torch.equal(nn.window_partition(x, window, shift), swin.window_partition(x, window, shift))
    with torch.no_grad(), launches(layer_norm_window_partition=1):
        y = nn.norm_partition(x, weight, bias, window, shift)
    exact = functional.layer_norm(x.double(), (channels,), weight.double(), bias.double())
    tools.assert_close([y], [swin.window_partition(exact, window, shift)], tools.tolerance[dtype])
    with launches(layer_norm=1, window_partition=1):
        assert nn.norm_partition(x, weight, bias, window, shift).requires_grad


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("windows", "tokens", "heads", "masks"), [(8, 49, 3, 4), (5, 49, 4, None), (6, 144, 2, 3), (4, 20, 1, None)]
)
def test_attention(tools, dtype, windows, tokens, heads, masks):
    mask = None if masks is None else -100.0 * torch.rand(masks, tokens, tokens, device="cuda").round()
    wide = None if mask is None else mask.double()
    forward = "window_attention" if tokens == 20 else "window_attention_packed"
    shapes = (windows, tokens, 3 * 32 * heads), (heads, tokens, tokens)
    with launches(**{forward: 1, "window_attention_grad": 1}):
        tools.compared(
            dtype,
            lambda qkv, bias: nn.window_attention(qkv, bias, mask),
            lambda qkv, bias: tools.attention(qkv, bias, wide),
            *shapes,
            device="cuda",
        )


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("shape", [(8, 64, 14, 14), (3, 5, 7, 9), (5, 3, 1, 1)])
def test_batch_norm(tools, dtype, order, with_residual, shape):
    x = normal(*shape, dtype=dtype).detach().contiguous(memory_format=order).requires_grad_()
    residual, (weight, bias) = normal(*shape, dtype=dtype), (normal(shape[1]) for _ in range(2))
    inputs = [x, weight, bias, *([residual] if with_residual else [])]
    running = [torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")]
    with launches(bn_add_relu=1, bn_add_relu_grad=1):
        y = nn.batch_norm_add_relu(x, residual if with_residual else None, *running, weight, bias)
        slope = torch.randn_like(y)
        made = [y, *torch.autograd.grad(y, inputs, slope)]
    assert made[0].is_contiguous(memory_format=order)
    exact = [one.detach().double().requires_grad_() for one in inputs]
    theirs = [torch.zeros_like(running[0]).double(), torch.ones_like(running[0]).double()]
    wanted = functional.batch_norm(exact[0], *theirs, *exact[1:3], training=True)
    wanted = wanted + exact[3] if with_residual else wanted
    # Where y rounds to 0 or not is ours to decide, so it decides for both.
    wanted = torch.where(y > 0, wanted, 0)
    wanted = [wanted, *torch.autograd.grad(wanted, exact, slope.double())]
    tools.assert_close(made, wanted, tools.tolerance[dtype])
    tools.assert_close(running, theirs, 1e-5)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(1, 1), (3, 1001), (64, 1024)])
def test_dropout_draws_what_a_cpu_draws(tools, dtype, shape):
    inputs = [tools.normal(*size, dtype=dtype) for size in (shape, shape[-1:], shape)]

    def three(x, bias, residual):
        return nn.bias_dropout_residual(nn.dropout_add(nn.dropout(x, 0.3), residual, 0.5), bias, residual, 0.25)

    nn.manual_seed(5)
    expected = tools.results(three, *inputs)
    nn.manual_seed(5)
    with launches(dropout=1, dropout_add=1, bias_dropout_residual=1, dropout_grad=3):
        made = tools.results(three, *(one.detach().cuda().requires_grad_() for one in inputs))
    tools.assert_close([one.cpu() for one in made], expected, tools.tolerance[dtype])


@pytest.mark.parametrize("dtype", ALL)
def test_other_strides_and_addresses(tools, dtype):
    room = normal(40 * 33 + 1, dtype=dtype).detach()
    weight = torch.ones(80, dtype=dtype, device="cuda")[::2]
    for x in (room[1:].view(33, 40), room[:-1].view(40, 33).T, room[:-1].view(33, 40).flip(0)):
        exact = functional.layer_norm(x.double(), (40,), weight.double(), weight.double())
        tools.assert_close([nn.layer_norm(x, weight, weight)], [exact], tools.tolerance[dtype])
        tools.assert_close([nn.softmax(x)], [torch.softmax(x.double(), -1)], tools.tolerance[dtype])
        assert nn.dropout(x, 0.5).is_contiguous()


def test_what_kernels_cannot_do_is_done_by_torch(tools):
    with launches():
        nn.layer_norm(normal(3, 4, dtype=torch.float64), normal(4), normal(4)).sum().backward()
        nn.window_attention(normal(2, 4, 96), normal(1, 4, 4)).sum().backward()
        x = normal(0, 4)
        nn.dropout(nn.softmax(nn.layer_norm(x, normal(4), normal(4))), 0.5).sum().backward()
        assert x.grad.shape == (0, 4)
        tools.assert_close(
            [nn.dropout(torch.ones(64, 64, device="cuda").double(), 1.0)], [torch.zeros(64, 64).cuda()], 0
        )


def test_autocast(tools):
    linear = torch.nn.Linear(64, 3 * 64, device="cuda")
    x, weight, bias = normal(8, 49, 64), normal(64), normal(2, 49, 49)
    with torch.autocast("cuda", dtype=torch.float16):
        half = linear(x)
        with launches(window_attention_packed=1, layer_norm=1):
            y = nn.layer_norm(nn.window_attention(half, bias), weight, weight)
        assert y.dtype == torch.float16
        assert nn.layer_norm(x, weight, weight).dtype == torch.float32
    with launches(window_attention_grad=1, layer_norm_grad=1):
        y.float().square().sum().backward()
    assert weight.grad.dtype == bias.grad.dtype == torch.float32
    assert bool(torch.isfinite(bias.grad).all())


# ---- Compiled, in graphs, on streams.


def block(x, weight, bias):
    """Some operators one after the other: (B, 14, 14, 64) to the same."""
    windows = nn.norm_partition(x, weight, bias, 7, 3)
    qkv = torch.cat([windows, windows * 2, windows + 1], -1)
    scores = torch.zeros(2, 49, 49, dtype=x.dtype, device=x.device)
    y = nn.window_reverse(nn.window_attention(qkv, scores), 14, 14, 7, 3)
    return nn.softmax(nn.rms_norm(nn.dropout_add(y, x, 0.25), weight))


BLOCK = {
    **dict.fromkeys(("layer_norm", "window_partition", "window_attention_packed", "window_reverse"), 1),
    **dict.fromkeys(("dropout_add", "rms_norm", "softmax"), 1),
}


def inputs_of_block():
    return [normal(*shape, dtype=torch.float16) for shape in ((2, 14, 14, 64), (64,), (64,))]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(tools, backend):
    compiled, inputs = torch.compile(block, fullgraph=True, backend=backend), inputs_of_block()
    nn.manual_seed(1)
    expected = tools.results(block, *inputs)
    nn.manual_seed(1)
    with launches(**BLOCK):
        compiled(*inputs)
    nn.manual_seed(1)
    tools.assert_close(tools.results(compiled, *inputs), expected, 4e-3)


def captured(function):
    """A graph of the function, which was called on a stream of its own before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = function()
    return graph, made


def test_in_a_graph(tools):
    inputs = inputs_of_block()
    graph, made = captured(lambda: tools.results(block, *inputs))
    nn.manual_seed(0)
    graph.replay()
    first = [one.clone() for one in made]
    graph.replay()
    assert not torch.equal(made[0], first[0])
    nn.manual_seed(0)
    graph.replay()
    assert all(map(torch.equal, made, first))
    nn.manual_seed(0)
    tools.assert_close(first, tools.results(block, *inputs), 1e-6)


def test_dropout_in_a_graph_draws_anew_beside_eager_calls():
    x = torch.ones(4096, device="cuda")
    graph, y = captured(lambda: nn.dropout(x, 0.5))
    drawn = []
    for _ in range(3):
        graph.replay()
        drawn += [y.clone(), nn.dropout(x, 0.5)]
    assert all(not torch.equal(one, other) for i, one in enumerate(drawn) for other in drawn[:i])
    assert all(0.45 < float((one > 0).float().mean()) < 0.55 for one in drawn)


def test_streams_do_not_disturb_each_other(tools):
    weight = torch.ones(4096, device="cuda", requires_grad=True)
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [normal(2048, 4096) for _ in streams]
    expected = [tools.results(nn.layer_norm, x, weight, weight) for x in inputs]
    torch.cuda.synchronize()
    made = [[], []]
    for _ in range(8):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                made[k].append(tools.results(nn.layer_norm, inputs[k], weight, weight))
    torch.cuda.synchronize()
    assert all(all(map(torch.equal, one, expected[k])) for k in range(2) for one in made[k])


def test_a_new_thread_can_launch(tools):
    x, made = normal(64, 1000), []
    expected = tools.results(nn.softmax, x)
    thread = threading.Thread(target=lambda: made.extend(tools.results(nn.softmax, x)))
    thread.start()
    thread.join()
    assert all(map(torch.equal, made, expected))
    assert made


# ---- Optimizer and scaler.


def trained(optimizer_kind, scaler_kind, dtype=torch.float32, steps=20):
    """Parameters and scales after some steps of a small model, of which two overflow."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(129, 257), torch.nn.Linear(257, 3)).cuda().to(dtype)
    optimizer = optimizer_kind(model.parameters(), lr=1e-2)
    scaler, scales = scaler_kind("cuda", init_scale=8.0, growth_interval=5), []
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 129, device="cuda", dtype=dtype)).square().mean()).backward()
        if step in (0, 7):
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return [one.detach() for one in model.parameters()], scales


@pytest.mark.parametrize("scaler", [nn.GradScaler, torch.amp.GradScaler])
def test_steps_are_those_of_torch(tools, scaler):
    parameters, scales = trained(nn.AdamW, scaler)
    expected, wanted = trained(torch.optim.AdamW, torch.amp.GradScaler)
    assert scales == wanted
    tools.assert_close(parameters, expected, 1e-5)
    half, _ = trained(nn.AdamW, scaler, torch.float16)
    assert all(bool(torch.isfinite(one).all()) for one in half)


def after_small_gradients(scaler_kind, dtype, overflow, size):
    """Master weights after two steps with gradients that float16 has not, such as 2^-30; the second may overflow."""
    weight = torch.ones(size, dtype=dtype, device="cuda", requires_grad=True)
    optimizer, scaler = nn.AdamW([weight], lr=1e-2), scaler_kind("cuda", init_scale=2.0**14)
    for step in range(2):
        slope = torch.arange(size, device="cuda") % 1024 * 2.0**-30 * 2.0**14
        weight.grad = slope.to(dtype)
        if step and overflow:
            weight.grad[size // 2] = float("inf")
        scaler.scale(torch.ones((), device="cuda"))
        with launches(unscale=1, adamw=1) if scaler_kind is nn.GradScaler else nullcontext():
            scaler.step(optimizer)
        scaler.update()
    state = optimizer.state[weight]
    assert float(state["step"]) == (1 if overflow else 2)
    assert torch.equal(state.get("master", weight).to(dtype), weight)
    return state.get("master", weight).detach(), state["exp_avg"]


@pytest.mark.parametrize("scaler", [nn.GradScaler, torch.amp.GradScaler])
@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("size", [1, 1023, 40_000])
def test_gradients_in_halves_lose_nothing_to_the_scale(scaler, overflow, size):
    made, wanted = (after_small_gradients(scaler, dtype, overflow, size) for dtype in (torch.float16, torch.float32))
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def test_a_step_does_not_wait_for_the_device():
    weights = [normal(size) for size in (1000, 3, 77)]
    optimizer, scaler = nn.AdamW(weights), nn.GradScaler("cuda")
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        scaler.scale(torch.ones((), device="cuda"))
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if optimizer.state else "default")
        try:
            with launches(unscale=1, adamw=1):
                scaler.step(optimizer)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        scaler.update()


@pytest.mark.parametrize("dtype", ALL)
def test_unscale_is_that_of_torch(dtype):
    base = torch.randn(20_000, device="cuda").to(dtype)
    grads = [base[1:3000], base[3001:3004], base[3005:3005], base[4000:8111]]
    theirs, scale, found = (
        [one.clone() for one in grads],
        torch.tensor(0.3, device="cuda"),
        torch.zeros((), device="cuda"),
    )
    before = base.clone()
    with launches(unscale=1):
        nn.unscale_(grads, scale, found)
    assert all(torch.equal(one, (other.float() * scale).to(dtype)) for one, other in zip(grads, theirs, strict=True))
    assert torch.equal(base[8111:], before[8111:])
    assert float(found) == 0
    grads[3][17] = float("nan")
    nn.unscale_(grads, scale, found)
    assert float(found) == 1


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_whole_step_in_a_graph_is_the_step_without(tools, set_to_none):
    config = replace(MODELS["swin_toy"], width=64, drop_path=0.0)
    given = swin.batch(config, 4, torch.Generator().manual_seed(0), "cuda")

    def model_after(steps, in_graph):
        torch.manual_seed(0)
        model = swin.Swin(config, nn.swin_operators()).cuda()
        optimizer, scaler = nn.AdamW(model.parameters(), lr=1e-3, eps=1e-2), nn.GradScaler("cuda", init_scale=64.0)

        def step():
            optimizer.zero_grad(set_to_none=set_to_none)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = swin.loss(model, given)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        if in_graph:
            graph, _ = captured(step)
            for _ in range(steps - 3):
                graph.replay()
            step()
        else:
            for _ in range(steps + 1):
                step()
        return [one.detach() for one in model.parameters()]

    # With so large an epsilon, gradients that are nothing but rounding move no weight.
    in_graph, without = model_after(8, in_graph=True), model_after(8, in_graph=False)
    tools.assert_close(in_graph, without, 2e-2)
    torch.manual_seed(0)
    start = [*swin.Swin(config).cuda().parameters()]
    assert all(not torch.equal(one, other) for one, other in zip(without, start, strict=True))
