"""Gradients of weights on a second stream: equal to autograd's, and in their place when the optimizer comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from harness.collection.steps.training._settings import captured, math_modes, side_stream
from harness.collection.steps.training._streams import on_two_streams
from harness.collection.steps.training._swin import SWIN
from harness.collection.steps.training._trainer import Setup, Trainer

STREAMS = [pytest.param(rung, id=rung.name) for rung in SWIN if rung.streams]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> Iterator[torch.device]:
    with math_modes(tf32=False):
        yield torch.device(request.param)


def model_of(device):
    """A product with a bias and one without, behind one whose output a residual takes as well."""
    torch.manual_seed(0)
    first, second, last = nn.Linear(24, 40), nn.Linear(40, 40, bias=False), nn.Linear(40, 8)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([first, second, last])

        def forward(self, x):
            y = first(x)
            return last(y + second(nn.functional.gelu(y)))

    return Model().to(device)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
def test_gradients_are_those_of_autograd(device, half):
    found = []
    for split in (False, True):
        model = model_of(device)
        stream = on_two_streams(model, device) if split else None
        x = torch.randn(3, 5, 24, device=device, requires_grad=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            made = model(x)
        made.float().square().sum().backward()
        if stream:
            stream.join()
        assert made.dtype == (torch.bfloat16 if half else torch.float32)
        found.append([made, x.grad, *(one.grad for one in model.parameters())])
    assert all(one is not None for one in found[1])
    torch.testing.assert_close(found[0], found[1], rtol=1e-2 if half else 1e-5, atol=1e-3 if half else 1e-5)


@pytest.mark.parametrize("rung", STREAMS)
def test_a_step_has_all_gradients_and_the_same_losses(rung):
    """In float64: the tests of small models above have halves."""
    setup = Setup("swin_toy", 2, 1, torch.device("cpu"), torch.float64)
    rung = replace(rung, graph=False, half="none", tf32=False)
    one, other = Trainer(rung, setup), Trainer(replace(rung, streams=False), setup)
    losses = []
    for trainer in (one, other):
        torch.manual_seed(3)
        losses.append([trainer.loss_of_step().item() for _ in range(2)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert all(weight.grad is not None for weight in one.weights)
    assert [name for name, _ in one.model.named_parameters()] == [name for name, _ in other.model.named_parameters()]


def test_torch_s_kernels_have_a_second_stream_as_ours_do():
    names = {"sdpa_streams": "sdpa_graph", "streams": "graph"}
    assert {one.values[0].name: one.values[0].base for one in STREAMS} == names


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("streams", STREAMS)
def test_losses_are_those_of_one_stream(graph, streams):
    """Products are large enough here that a stream which doesn't wait would read what isn't there yet."""
    setup = Setup("swin_tiny", 16, 1, torch.device("cuda", 0), torch.float16)
    found = []
    for rung in (streams, replace(streams, streams=False)):
        with math_modes(tf32=True):
            trainer = Trainer(rung, setup)
            with side_stream():
                for _ in range(3):
                    trainer.loss_of_step()
            step = captured(trainer.loss_of_step) if graph else trainer.loss_of_step
            found.append([step().item() for _ in range(8)])
    assert found[0] == pytest.approx(found[1], rel=2e-2)
