"""Operators on a GPU: that kernels do the work, that results are right, and the same compiled and in a graph."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch.nn import functional

from harness.collection import nn
from harness.collection.models import swin
from harness.collection.nn import _attention, _dropout

pytestmark = pytest.mark.gpu
ALL = [torch.float32, torch.float16, torch.bfloat16]
HALVES = [torch.float16, torch.bfloat16]


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True)


# ---- Results.


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(1, 8), (33, 49), (2, 100, 96), (7, 1001), (16, 16384), (5, 20_000), (768,)])
def test_norms_and_softmax(tools, dtype, shape):
    size = shape[-1:]

    def norm(x, w, b):
        return functional.layer_norm(x, size, w, b)

    with tools.launches(layer_norm=1, layer_norm_grad=1):
        tools.compared(dtype, nn.layer_norm, norm, shape, size, size, device="cuda")
    with tools.launches(rms_norm=1, rms_norm_grad=1):
        tools.compared(
            dtype, nn.rms_norm, lambda x, w: functional.rms_norm(x, size, w, 1e-5), shape, size, device="cuda"
        )
    with tools.launches(softmax=1, softmax_grad=1):
        tools.compared(dtype, nn.softmax, lambda x: torch.softmax(x, -1), shape, device="cuda")


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("eps", [1e-12, 1e-3])
@pytest.mark.parametrize("shape", [(300, 8), (33, 49), (300, 768), (7, 1001), (16, 16384), (5, 60_000)])
def test_norms_with_another_epsilon(tools, dtype, eps, shape):
    # Rows with so small a deviation that each of 1e-12, 1e-5 and 1e-3 gives another result.
    size, scale = shape[-1:], 2.0**-10 if eps < 1e-5 else 2.0**-7
    with tools.launches(layer_norm=1, layer_norm_grad=1):
        tools.compared(
            dtype,
            lambda x, w, b: nn.layer_norm(x * scale, w, b, eps),
            lambda x, w, b: functional.layer_norm(x * scale, size, w, b, eps),
            *(shape, size, size),
            device="cuda",
        )
    with tools.launches(rms_norm=1, rms_norm_grad=1):
        tools.compared(
            dtype,
            lambda x, w: nn.rms_norm(x * scale, w, eps),
            lambda x, w: functional.rms_norm(x * scale, size, w, eps),
            *(shape, size),
            device="cuda",
        )


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("eps", [1e-12, 1e-3])
@pytest.mark.parametrize("channels", [96, 97, 3, 1024])
def test_norm_partition_with_another_epsilon(tools, dtype, eps, channels):
    x = normal(2, 14, 7, channels, dtype=dtype).detach() * (2.0**-10 if eps < 1e-5 else 2.0**-7)
    weight, bias = (normal(channels, dtype=dtype).detach() for _ in range(2))
    with torch.no_grad(), tools.launches(layer_norm_window_partition=1):
        y = nn.norm_partition(x, weight, bias, 7, 3, eps)
    exact = functional.layer_norm(x.double(), (channels,), weight.double(), bias.double(), eps)
    tools.assert_close([y], [swin.window_partition(exact, 7, 3)], tools.tolerance[dtype])


def test_layer_norm_of_bert_is_ours(tools):
    norm = torch.nn.LayerNorm(768, eps=1e-12, device="cuda")
    with tools.launches(layer_norm=1):
        nn.bert_operators().layer_norm(norm, normal(4, 128, 768, dtype=torch.float16))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(
    ("shape", "window", "shift"), [((2, 14, 21, 96), 7, 3), ((1, 4, 4, 3), 4, 0), ((3, 6, 4, 1), 2, 1)]
)
def test_windows(tools, dtype, shape, window, shift):
    _, height, width, channels = shape

    def ours(x):
        return nn.window_reverse(nn.window_partition(x, window, shift) * 2, height, width, window, shift)

    # A window as large as the image is a copy, which torch makes.
    once = int((height, width, shift) != (window, window, 0))
    with tools.launches(**{op: 2 for op in ("window_partition", "window_reverse") if once}):
        tools.compared(dtype, ours, lambda x: x * 2, shape, device="cuda")
    x, weight, bias = (normal(*size, dtype=dtype) for size in (shape, (channels,), (channels,)))
    assert torch.equal(nn.window_partition(x, window, shift), swin.window_partition(x, window, shift))
    with torch.no_grad(), tools.launches(layer_norm_window_partition=1):
        y = nn.norm_partition(x, weight, bias, window, shift)
    exact = functional.layer_norm(x.double(), (channels,), weight.double(), bias.double())
    tools.assert_close([y], [swin.window_partition(exact, window, shift)], tools.tolerance[dtype])
    with tools.launches(layer_norm=1, **({"window_partition": 1} if once else {})):
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
    with tools.launches(**{forward: 1, "window_attention_grad": 1}):
        tools.compared(
            dtype,
            lambda qkv, bias: nn.window_attention(qkv, bias, mask),
            lambda qkv, bias: tools.attention(qkv, bias, wide),
            *shapes,
            device="cuda",
        )


def peak_of(function):
    """Bytes that a call takes at most, once a call before has left behind what later ones find."""
    gc.collect()  # what earlier tests left in circles would count as memory that was taken before
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
    return torch.cuda.max_memory_allocated() - before


def gradients_of_attention(tools, given, bias, mask, first=0, windows=None):
    """Gradients of qkv and bias, by torch in float64, for some windows. given: dout and qkv."""
    dout, qkv = (one[first : windows and first + windows].double() for one in given)
    leaves = [qkv.requires_grad_(), bias.double().requires_grad_()]
    y = tools.attention(*leaves, None if mask is None else mask.double())
    return torch.autograd.grad(y, leaves, dout)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [32, 64])
@pytest.mark.parametrize("tokens", [7, 49, 64, 144])
def test_gradients_of_attention_of_heads_side_by_side(tools, dtype, dim, tokens):
    # Also addresses that aren't multiples of 16, and more windows than blocks.
    cases = [(1, 6, None, 0), (2, 6, 3, 0), (3, 8, 2, 1), (4, 6, None, 8), (4, 700, 7, 0), (3, 5, None, 3)]
    for heads, windows, masks, offset in cases:
        shapes = (windows, tokens, heads * dim), (windows, tokens, 3 * heads * dim)
        rooms = [normal(torch.Size(shape).numel() + offset, dtype=dtype).detach() for shape in shapes]
        given = [room[offset:].view(shape) for room, shape in zip(rooms, shapes, strict=True)]
        bias = normal(heads, tokens, tokens, dtype=dtype).detach()
        mask = None if masks is None else -100.0 * torch.rand(masks, tokens, tokens, device="cuda").round().to(dtype)
        with tools.launches(window_attention_grad=1):
            made = _attention._attention_grad_run(*given, bias, mask)
        tools.assert_close(made, gradients_of_attention(tools, given, bias, mask), tools.tolerance[dtype])


def test_nothing_is_copied_for_gradients_of_attention():
    dout, qkv = (normal(2048, 49, size, dtype=torch.float16).detach() for size in (96, 288))
    bias = normal(3, 49, 49, dtype=torch.float16).detach()
    peak = peak_of(lambda: _attention._attention_grad_run(dout, qkv, bias, None))
    # Besides, each block has sums of the gradient of the bias in float32.
    assert peak <= qkv.nbytes + 2**23


@pytest.mark.large
def test_gradients_of_attention_of_more_than_2_to_31_elements(tools):
    windows = 2**31 // (49 * 288) + 1000
    dout, qkv = (torch.empty(windows, 49, size, dtype=torch.float16, device="cuda").normal_() for size in (96, 288))
    bias = normal(3, 49, 49, dtype=torch.float16).detach()
    made, _ = _attention._attention_grad_run(dout, qkv, bias, None)
    for first in (0, windows // 2, windows - 32):
        wanted, _ = gradients_of_attention(tools, (dout, qkv), bias, None, first, 32)
        tools.assert_close([made[first : first + 32]], [wanted], tools.tolerance[torch.float16])


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("shape", [(8, 64, 14, 14), (3, 5, 7, 9), (5, 3, 1, 1)])
def test_batch_norm(tools, dtype, order, with_residual, shape):
    x = normal(*shape, dtype=dtype).detach().contiguous(memory_format=order).requires_grad_()
    residual, (weight, bias) = normal(*shape, dtype=dtype), (normal(shape[1]) for _ in range(2))
    inputs = [x, weight, bias, *([residual] if with_residual else [])]
    running = [torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")]
    with tools.launches(bn_add_relu=1, bn_add_relu_grad=1):
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
def test_dropout_draws_what_a_cpu_draws(tools, monkeypatch, dtype, shape):
    inputs = [tools.normal(*size, dtype=dtype) for size in (shape, shape[-1:], shape)]

    def three(x, bias, residual):
        return nn.bias_dropout_residual(nn.dropout_add(nn.dropout(x, 0.3), residual, 0.5), bias, residual, 0.25)

    # Generators of torch draw other numbers on other devices; from equal numbers of calls, masks are equal.
    calls = [torch.full((1,), number) for number in (0, 2**32 + 5, 2**62 + 1)] * 2
    monkeypatch.setattr(_dropout, "_draw", lambda x: calls.pop(0).to(x.device))
    expected = tools.results(three, *inputs)
    with tools.launches(dropout=1, dropout_add=1, bias_dropout_residual=1, dropout_grad=3):
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
    with tools.launches():
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
        with tools.launches(window_attention_packed=1, layer_norm=1):
            y = nn.layer_norm(nn.window_attention(half, bias), weight, weight)
        assert y.dtype == torch.float16
        assert nn.layer_norm(x, weight, weight).dtype == torch.float32
    with tools.launches(window_attention_grad=1, layer_norm_grad=1):
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
    torch.manual_seed(1)
    expected = tools.results(block, *inputs)
    torch.manual_seed(1)
    with tools.launches(**BLOCK):
        compiled(*inputs)
    torch.manual_seed(1)
    tools.assert_close(tools.results(compiled, *inputs), expected, 4e-3)


def test_in_a_graph(tools):
    inputs = inputs_of_block()
    graph, made = tools.captured(lambda: tools.results(block, *inputs))
    torch.manual_seed(0)
    graph.replay()
    first = [one.clone() for one in made]
    graph.replay()
    assert not torch.equal(made[0], first[0])
    torch.manual_seed(0)
    graph.replay()
    assert all(map(torch.equal, made, first))
    torch.manual_seed(0)
    tools.assert_close(first, tools.results(block, *inputs), 1e-6)


@pytest.mark.parametrize("with_residual", [True, False])
def test_batch_norm_takes_little_more_memory_than_torch(with_residual):
    x, residual = (normal(16, 64, 56, 56, dtype=torch.float16) for _ in range(2))
    weight, bias = (normal(64) for _ in range(2))
    running = [torch.zeros(64, device="cuda"), torch.ones(64, device="cuda")]
    inputs = [x, weight, bias, *([residual] if with_residual else [])]

    def ours():
        return nn.batch_norm_add_relu(x, residual if with_residual else None, *running, weight, bias)

    def theirs():
        y = functional.batch_norm(x, *running, weight, bias, training=True)
        return (y.add_(residual) if with_residual else y).relu_()

    def peak(function):
        return peak_of(lambda: torch.autograd.grad(y := function(), inputs, torch.ones_like(y)))

    bits = x.numel() // 8
    assert peak(ours) <= peak(theirs) + bits + 2**16


def test_batch_norm_in_a_graph_updates_its_running_statistics(tools):
    x, vector = normal(4, 8, 6, 5, dtype=torch.float16), torch.ones(8, device="cuda")
    running, wanted = ([torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")] for _ in range(2))
    graph, y = tools.captured(lambda: nn.batch_norm_add_relu(x, None, *running, vector, vector))
    for _ in range(2):
        graph.replay()
    for _ in range(3 + 2):
        functional.batch_norm(x.float(), *wanted, training=True)
    tools.assert_close(running, wanted, 1e-5)
    tools.assert_close(
        [y],
        [functional.relu(functional.batch_norm(x.double(), None, None, vector.double(), vector.double(), True))],
        4e-3,
    )


def test_dropout_in_a_graph_draws_anew_beside_eager_calls(tools):
    x = torch.ones(4096, device="cuda")
    graph, y = tools.captured(lambda: nn.dropout(x, 0.5))
    drawn = []
    for _ in range(3):
        graph.replay()
        drawn += [y.clone(), nn.dropout(x, 0.5)]
    assert all(not torch.equal(one, other) for i, one in enumerate(drawn) for other in drawn[:i])
    assert all(0.45 < float((one > 0).float().mean()) < 0.55 for one in drawn)


def test_a_graph_goes_on_from_a_saved_state_of_torchs_generator(tools):
    x = torch.ones(4096, device="cuda")
    graph, y = tools.captured(lambda: nn.dropout(x, 0.5))
    graph.replay()
    state = torch.cuda.get_rng_state()
    wanted = []
    for _ in range(2):
        torch.cuda.set_rng_state(state)
        graph.replay()
        wanted.append([y.clone(), nn.dropout(x, 0.5)])
    assert all(map(torch.equal, *wanted))


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
