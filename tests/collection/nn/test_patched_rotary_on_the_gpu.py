"""Patched rotary embeddings on a GPU: our kernel runs, and gives what the given function gives."""

from __future__ import annotations

import copy

import pytest
import torch

from harness import nn as ours
from tests.collection.nn.test_patched_rotary import WIDTH, Decoder

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compiled", [False, True])
def test_attention_runs_by_our_kernel(dtype, compiled):
    torch.manual_seed(0)
    model = Decoder().to("cuda", dtype)
    plain = copy.deepcopy(model)
    assert {one.now for one in ours.patch(model).swapped} == {"nn.rope"}
    called = torch.compile(model) if compiled else model
    x = torch.randn(2, 64, WIDTH, device="cuda", dtype=dtype)
    positions = torch.arange(64, device="cuda").expand(2, -1)
    with torch.profiler.profile() as profiler:
        y = called(x, positions)
        torch.cuda.synchronize()
    names = {event.name for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA}
    assert any("rope" in name for name in names), names
    want = plain(x, positions)
    off = 1e-4 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(y, want, rtol=off, atol=off)
    y.float().square().mean().backward()
    want.float().square().mean().backward()
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=10 * off, atol=off)
