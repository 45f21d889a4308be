"""AdamW, the gradient scaler and whole steps on a GPU: results are torch's, and a graph makes the same step."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from harness.collection import nn
from harness.collection.models import MODELS, swin

pytestmark = pytest.mark.gpu
ALL = [torch.float32, torch.float16, torch.bfloat16]


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


def after_small_gradients(tools, scaler_kind, dtype, overflow, size):
    """Master weights after two steps with gradients that float16 has not, such as 2^-30; the second may overflow."""
    weight = torch.ones(size, dtype=dtype, device="cuda", requires_grad=True)
    optimizer, scaler = nn.AdamW([weight], lr=1e-2), scaler_kind("cuda", init_scale=2.0**14)
    for step in range(2):
        slope = torch.arange(size, device="cuda") % 1024 * 2.0**-30 * 2.0**14
        weight.grad = slope.to(dtype)
        if step and overflow:
            weight.grad[size // 2] = float("inf")
        scaler.scale(torch.ones((), device="cuda"))
        with tools.launches(unscale=1, adamw=1) if scaler_kind is nn.GradScaler else nullcontext():
            scaler.step(optimizer)
        scaler.update()
    state = optimizer.state[weight]
    assert float(state["step"]) == (1 if overflow else 2)
    assert torch.equal(state.get("master", weight).to(dtype), weight)
    return state.get("master", weight).detach(), state["exp_avg"]


@pytest.mark.parametrize("scaler", [nn.GradScaler, torch.amp.GradScaler])
@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("size", [1, 1023, 40_000])
def test_gradients_in_halves_lose_nothing_to_the_scale(tools, scaler, overflow, size):
    made, wanted = (
        after_small_gradients(tools, scaler, dtype, overflow, size) for dtype in (torch.float16, torch.float32)
    )
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def test_a_step_of_halves_in_a_graph_divides_by_the_scale_of_its_time(tools):
    def stepped():
        weight = torch.ones(5000, dtype=torch.float16, device="cuda", requires_grad=True)
        weight.grad = torch.arange(5000, device="cuda").remainder(1024).mul(2.0**-20).half()
        # The scale doubles after each step, while the gradients stay: each step takes them for half as large.
        optimizer, scaler = nn.AdamW([weight], lr=1e-2), nn.GradScaler("cuda", init_scale=4.0, growth_interval=1)

        def step():
            scaler.scale(torch.ones((), device="cuda"))
            scaler.step(optimizer)
            scaler.update()

        return step, optimizer.state[weight]

    (step, in_graph), (eager_step, without) = stepped(), stepped()
    graph, _ = tools.captured(step)
    for _ in range(3):
        graph.replay()
    for _ in range(3 + 3):
        eager_step()
    for name in ("master", "exp_avg", "exp_avg_sq", "step"):
        assert torch.equal(in_graph[name], without[name]), name
    assert float(without["step"]) == 6


def test_a_step_does_not_wait_for_the_device(tools):
    weights = [torch.randn(size, device="cuda", requires_grad=True) for size in (1000, 3, 77)]
    optimizer, scaler = nn.AdamW(weights), nn.GradScaler("cuda")
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        scaler.scale(torch.ones((), device="cuda"))
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if optimizer.state else "default")
        try:
            with tools.launches(unscale=1, adamw=1):
                scaler.step(optimizer)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        scaler.update()


@pytest.mark.parametrize("dtype", ALL)
def test_unscale_is_that_of_torch(tools, dtype):
    base = torch.randn(20_000, device="cuda").to(dtype)
    grads = [base[1:3000], base[3001:3004], base[3005:3005], base[4000:8111]]
    theirs, scale, found = (
        [one.clone() for one in grads],
        torch.tensor(0.3, device="cuda"),
        torch.zeros((), device="cuda"),
    )
    before = base.clone()
    with tools.launches(unscale=1):
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
            graph, _ = tools.captured(step)
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
