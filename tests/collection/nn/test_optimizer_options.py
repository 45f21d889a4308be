"""AdamW of harness.nn with the arguments, the state and the helpers of torch's."""

from __future__ import annotations

import re
from copy import deepcopy

import pytest
import torch
import yaml

from harness import nn
from harness.collection.nn import _adamw
from tests.collection.nn.features import TABLE
from tests.collection.nn.optimizers import TRIED
from tests.one_test import one_test

PAGE = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["adamw"]
RANKS = {"ddp", "fsdp"}
"""What tests of several ranks try."""


@one_test("name", TRIED)
def test_what_happens_is_what_the_page_says(name):
    try:
        TRIED[name]()
        made = "right"
    except (ValueError, RuntimeError) as error:
        made = f"error: {type(error).__name__}: {error}"
    assert re.match(PAGE[name]["outcome"], made), made


def test_everything_on_the_page_is_tried():
    assert {*PAGE} == {*TRIED} | RANKS


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("scaled", [False, True])
def test_kernels_maximize(scaled):
    """The kernel divides gradients by a scale, which is negative then."""
    made = []
    for kind in (nn.AdamW, torch.optim.AdamW):
        weight = torch.linspace(-1, 1, 3000).requires_grad_()
        optimizer = kind([weight], lr=1e-2, maximize=True)
        scaler = nn.GradScaler("cpu", init_scale=4.0, enabled=scaled)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((weight - 3).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        made.append(weight.detach())
    torch.testing.assert_close(*made, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("kernels")
def test_the_kernel_gets_its_scale_in_float32_whatever_torchs_default_is(monkeypatch):
    scales, found = [], _adamw.of_lists(_adamw.adamw.OP, {})
    monkeypatch.setattr(_adamw, "of_lists", lambda *_: lambda *given: scales.append(given[-1]) or found(*given))
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    optimizer = nn.AdamW([weight], maximize=True)
    torch.set_default_dtype(torch.float64)
    try:
        optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert [(float(scale), scale.dtype) for scale in scales] == [(-1.0, torch.float32)]


def test_a_loaded_amsgrad_is_refused_before_a_step():
    weight = torch.ones(2, requires_grad=True)
    state = torch.optim.AdamW([weight], amsgrad=True).state_dict()
    with pytest.raises(ValueError, match="no amsgrad"):
        nn.AdamW([weight]).load_state_dict(state)


def test_a_group_that_is_refused_is_not_added():
    optimizer = nn.AdamW([torch.ones(2, requires_grad=True)])
    with pytest.raises(ValueError, match="lr is -1"):
        optimizer.add_param_group({"params": [torch.ones(2, requires_grad=True)], "lr": -1})
    assert len(optimizer.param_groups) == 1


def test_a_rate_is_read_when_it_was_written(monkeypatch):
    """The host waits for a rate on a GPU, so it reads the rate no more often than it must."""
    rate, read = torch.tensor(0.5), []
    weight = torch.ones(1, requires_grad=True)
    optimizer = nn.AdamW([weight], lr=rate)
    monkeypatch.setattr(torch.Tensor, "__float__", lambda self: read.append(self.item()) or self.item())
    for step in range(6):
        weight.grad = torch.ones(1)
        optimizer.step()
        if step in (1, 3):
            rate.fill_(0.25 / (step + 1))
    assert [one for one in read if one < 1] == [0.5, 0.125, 0.0625]


def test_a_graph_with_a_rate_on_the_gpu_is_refused(monkeypatch):
    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    optimizer = nn.AdamW([weight], lr=torch.tensor(0.5))
    monkeypatch.setattr(_adamw, "capturing", lambda: True)
    optimizer.step()
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with pytest.raises(RuntimeError, match="give a number and capture again"):
        optimizer.step()


@pytest.mark.slow
def test_a_compiler_leaves_a_step_as_it_is():
    made = []
    for compiled in (False, True):
        weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
        optimizer = nn.AdamW([weight], lr=0.1)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        weight.grad = torch.ones_like(weight)
        step()
        made.append(weight.detach())
    assert torch.equal(*made)


@pytest.mark.gpu
def test_options_on_a_gpu():
    """Steps with options that have a meaning are torch's, and a tensor as rate is followed."""
    for options in ({"maximize": True}, {"lr": torch.tensor(1e-2, device="cuda")}, {"lr": torch.tensor(1e-2)}):
        made = []
        for kind in (nn.AdamW, torch.optim.AdamW):
            weight = torch.linspace(-1, 1, 5000, device="cuda").requires_grad_()
            own = deepcopy(options)
            optimizer = kind([weight], fused=True, **own)
            for _ in range(4):
                optimizer.zero_grad()
                (weight - 3).square().sum().backward()
                optimizer.step()
                if "lr" in own:
                    own["lr"].mul_(0.5)
            made.append(weight.detach())
        torch.testing.assert_close(*made, rtol=0, atol=1e-6)
