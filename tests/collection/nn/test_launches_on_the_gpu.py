"""The launcher in C does on a GPU what Python does, bit by bit; and torch.compile makes graphs with our operators."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch.nn import functional

from harness import nn
from harness.collection.nn import _kernels, _memo
from harness.cuda import native
from tests.collection.nn import test_launches

pytestmark = pytest.mark.gpu


@pytest.fixture
def on_the_gpu(monkeypatch):
    """Running statistics and masks of the functions lie on the GPU, and nothing is known of earlier calls."""
    for name in ("RUNNING", "MASKS"):
        kept = getattr(test_launches, name)
        there = tuple(one.cuda() for one in kept) if isinstance(kept, tuple) else kept.cuda()
        monkeypatch.setattr(test_launches, name, there)
    for memo in _memo.Memo.every:
        monkeypatch.setattr(memo, "_known", {})
        monkeypatch.setattr(memo, "call", memo._first)


def plans() -> list[object]:
    return [plan for memo in _memo.Memo.every for plan in memo._known.values()]


def trained(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output and the gradients of a call, with random numbers that begin anew."""
    torch.manual_seed(3)
    own = [one.detach().clone(memory_format=torch.preserve_format).requires_grad_() for one in inputs]
    y = test_launches.FUNCTIONS[name][0](*own)
    # In the order of y's memory: a gradient in another order is copied first, and such a call isn't learnt.
    slope = torch.empty_like(y).copy_(torch.arange(y.numel(), device="cuda").remainder(7).sub(3).view(y.shape))
    return [y.detach(), *torch.autograd.grad(y, own, slope)]


@pytest.mark.parametrize("name", test_launches.FUNCTIONS)
@pytest.mark.usefixtures("on_the_gpu")
def test_the_launcher_in_c_does_what_python_does(name, monkeypatch):
    assert native.launcher() is not None, "no C compiler"
    first, second = ([one.detach().cuda() for one in test_launches.FUNCTIONS[name][1]()] for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(native, "launcher", lambda: None)
        wanted = [trained(name, inputs) for inputs in (first, second)]
        assert not plans()
    for memo in _memo.Memo.every:
        memo.call = memo._first
    made = [trained(name, inputs) for inputs in (first, second, first)]
    assert plans()
    assert all(plans())
    for given, expected in zip(made, (*wanted, wanted[0]), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(given, expected, strict=True))


@pytest.mark.usefixtures("on_the_gpu")
def test_calls_on_other_streams_and_in_threads(tools):
    x = torch.randn(64, 1000, device="cuda")
    wanted = torch.softmax(x, -1)
    got = {}

    def call(name: str) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            ours = x.clone()
            for _ in range(20):
                y = nn.softmax(ours)
            torch.cuda.current_stream().synchronize()
        got[name] = y

    call("here")
    threads = [threading.Thread(target=call, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 9
    tools.assert_close([*got.values()], [wanted] * 9, 1e-5)


@pytest.mark.usefixtures("on_the_gpu")
def test_addresses_that_begin_inside_of_a_pack(tools):
    room = torch.randn(4097, device="cuda")
    for offset in (0, 1, 0, 1, 2):
        x = room[offset : offset + 4080].view(-1, 40)
        tools.assert_close([nn.softmax(x)], [torch.softmax(x, -1)], 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [8, 77, 768, 40000])
def test_parameters_in_float32_are_rounded_to_the_type_of_x(dtype, columns):
    x, dy = (torch.randn(300, columns, device="cuda").to(dtype) for _ in range(2))
    weight, bias = (torch.randn(columns, device="cuda", requires_grad=True) for _ in range(2))
    for vectors, function in (((weight, bias), nn.layer_norm), ((weight,), nn.rms_norm)):
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        y, wanted = function(ours, *vectors), function(theirs, *(vector.to(dtype) for vector in vectors))
        assert torch.equal(y, wanted)
        made = torch.autograd.grad(y, [ours, *vectors], dy)
        expected = torch.autograd.grad(wanted, [theirs, *vectors], dy)
        assert [one.dtype for one in made] == [dtype, *[torch.float32] * len(vectors)]
        assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))


def test_a_tensor_on_the_cpu_is_refused():
    x, weight = torch.randn(4, 64, device="cuda"), torch.randn(64)
    with pytest.raises(RuntimeError, match="layer_norm: gamma lies on cpu, other tensors on cuda:0; move it there"):
        nn.layer_norm(x, weight, weight)


class Block(torch.nn.Module):  # type: ignore[misc]
    """Norms, attention within windows, and what lies between them."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(64), torch.nn.LayerNorm(64)
        self.qkv, self.product = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
        self.bias = torch.nn.Parameter(torch.randn(2, 16, 16))
        self.ours = ours

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer_norm = nn.layer_norm if self.ours else lambda x, w, b: functional.layer_norm(x, (64,), w, b)
        y = self.qkv(layer_norm(x, self.norm.weight, self.norm.bias))
        if self.ours:
            y = nn.window_attention(y, self.bias)
        else:
            q, k, v = y.view(-1, 16, 3, 2, 32).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias).transpose(1, 2).flatten(2)
        return layer_norm(x + self.product(y), self.out.weight, self.out.bias)


def after_steps(model: torch.nn.Module, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for batch in batches:
        loss = model(batch).float().square().mul(torch.arange(64, device="cuda")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*losses, *[param.detach() for param in model.parameters()]]


@pytest.mark.timeout(300)
def test_graphs_that_torch_compile_makes(tools):
    """Steps in the mode reduce-overhead: the first ones warm up and capture, the next ones replay."""
    torch.manual_seed(0)
    plain = Block(ours=False).cuda().half()
    ours = Block(ours=True).cuda().half()
    ours.load_state_dict(copy.deepcopy(plain.state_dict()))
    batches = [torch.randn(32, 16, 64, device="cuda").half() for _ in range(8)]
    before = sum(_kernels.LAUNCHED.values())
    made = after_steps(torch.compile(ours, mode="reduce-overhead"), batches)
    captured = sum(_kernels.LAUNCHED.values()) - before
    assert 0 < captured < 5 * len(batches), "the last steps weren't replays"
    tools.assert_close(made, after_steps(plain, batches), 2e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", test_launches.FUNCTIONS)
def test_tensors_on_the_second_device_while_the_first_one_is_current(name, monkeypatch):
    """Kernels, memory and streams are the second device's, at the first call and when it is made again."""
    assert torch.cuda.current_device() == 0
    for kept in ("RUNNING", "MASKS"):
        value = getattr(test_launches, kept)
        there = tuple(one.to("cuda:1") for one in value) if isinstance(value, tuple) else value.to("cuda:1")
        monkeypatch.setattr(test_launches, kept, there)
    given = [one.detach() for one in test_launches.FUNCTIONS[name][1]()]
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        own = [one.to("cuda:1").requires_grad_() for one in given]
        y = test_launches.FUNCTIONS[name][0](*own)
        made.append([y.detach(), *torch.autograd.grad(y, own, torch.ones_like(y))])
    assert {one.device for results in made for one in results} == {torch.device("cuda", 1)}
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
    assert torch.cuda.current_device() == 0


def test_numbers_of_dropout_on_several_streams_come_one_after_the_other():
    """Streams that overlap draw what one stream draws."""
    x = torch.ones(1 << 22, device="cuda")
    torch.manual_seed(11)
    wanted = [nn.dropout(x, 0.5) for _ in range(12)]
    torch.cuda.synchronize()
    torch.manual_seed(11)
    torch.cuda.synchronize()
    streams, made = [torch.cuda.Stream() for _ in range(3)], []
    for number in range(12):
        with torch.cuda.stream(streams[number % 3]):
            made.append(nn.dropout(x, 0.5))
    torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(made, wanted, strict=True))


def test_numbers_of_dropout_take_a_kernel_once_in_many_calls_and_follow_the_generator():
    x = torch.ones(4096, device="cuda")
    nn.forget()
    torch.manual_seed(3)
    first = [nn.dropout(x, 0.5) for _ in range(1100)]
    assert len({tuple(one.nonzero().flatten().tolist()) for one in first}) == len(first)
    state = torch.cuda.get_rng_state()
    wanted = [nn.dropout(x, 0.5), torch.rand(4, device="cuda"), nn.dropout(x, 0.5)]
    torch.cuda.set_rng_state(state)
    assert all(map(torch.equal, [nn.dropout(x, 0.5), torch.rand(4, device="cuda"), nn.dropout(x, 0.5)], wanted))
    with torch.profiler.profile() as watched:
        for _ in range(8):
            nn.dropout(x, 0.5)
        torch.cuda.synchronize()
    kernels = [event.name for event in watched.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert [name for name in kernels if "random" in name or "distribution" in name] == []
    assert len([name for name in kernels if "dropout" in name]) == 8


def test_dropout_that_is_drawn_under_inference_can_be_trained_with_later():
    x = torch.ones(4096, device="cuda", requires_grad=True)
    nn.forget()
    with torch.inference_mode():
        nn.dropout(x, 0.5)
    y = nn.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad, y)
