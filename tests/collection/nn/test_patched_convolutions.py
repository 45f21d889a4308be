"""Convolutions into patches that become products of matrices: the same numbers and layouts, only where that holds."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from harness.collection.nn import _patch
from tests.one_test import one_test

PLAIN = {"in_channels": 3, "out_channels": 24, "kernel_size": 4, "stride": 4}
HALVES = torch.autocast("cpu", torch.bfloat16)


def both(**options):
    """A convolution as it is, and the same one patched."""
    torch.manual_seed(0)
    plain = nn.Conv2d(**(PLAIN | options))
    patched = copy.deepcopy(plain)
    return plain, patched, _patch.patch(patched)


def images(*sizes, dtype=torch.float32):
    return torch.randn(sizes or (2, 3, 8, 12), generator=torch.Generator().manual_seed(1)).to(dtype)


def kernels(model, x):
    """The operators that a forward calls."""
    with torch.profiler.profile() as seen:
        y = model(x)
    return {event.key for event in seen.key_averages()}, y


def slopes(model, x, mode):
    given = x.clone().requires_grad_()
    with mode:
        y = model(given)
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    return torch.autograd.grad((y.float() * weights).sum(), [given, *model.parameters()])


@one_test(
    "options",
    [{}, {"bias": False}, {"kernel_size": (2, 3), "stride": (2, 3)}, {"in_channels": 1}, {"padding": "valid"}],
)
def test_in_halves_it_is_a_product_with_the_same_numbers_and_gradients(options):
    plain, patched, done = both(**options)
    assert [(one.was, one.now) for one in done.swapped] == [("Conv2d", "a product of patches, in halves")]
    x = images(2, options.get("in_channels", 3), 8, 12)
    with HALVES:
        called, y = kernels(patched, x)
        wanted = plain(x)
    assert "aten::linear" in called
    assert "aten::convolution" not in called
    assert (y.dtype, y.shape, y.stride()) == (torch.bfloat16, wanted.shape, wanted.stride())
    assert (y - wanted).float().norm() < 1e-2 * wanted.float().norm()
    for one, other in zip(slopes(patched, x, HALVES), slopes(plain, x, HALVES), strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 1e-2 * other.norm()
    done.undo()
    assert type(patched) is nn.Conv2d


def test_weights_in_halves_need_no_autocast():
    plain, patched, _ = both()
    x = images(dtype=torch.float16)
    called, y = kernels(patched.half(), x)
    assert "aten::convolution" not in called
    assert (y - plain.half()(x)).float().norm() < 1e-2 * y.float().norm()


@one_test(
    ("x", "mode"),
    [
        (images(), nullcontext()),
        (images().double(), HALVES),
        (images(2, 3, 9, 12), HALVES),
        (images(3, 8, 12), HALVES),
    ],
    ids=["float32", "float64", "a row is left over", "one image"],
)
def test_what_a_product_would_change_is_a_convolution(x, mode):
    plain, patched, _ = both()
    if x.dtype == torch.float64:
        plain, patched = plain.double(), patched.double()
    with mode:
        called, y = kernels(patched, x)
        assert torch.equal(y, plain(x))
    assert "aten::linear" not in called


@pytest.mark.parametrize("sizes", [(0, 3, 8, 12), (2, 3, 0, 12)])
def test_of_no_image_and_of_an_empty_one_torch_says_what_it_says(sizes):
    told = []
    for model in both()[:2]:
        with HALVES:
            try:
                told.append(model(images(*sizes)).shape)
            except RuntimeError as error:
                told.append(str(error))
    assert told[0] == told[1]


def test_a_device_without_autocast_has_shapes():
    _, patched, _ = both()
    assert patched.to("meta")(images().to("meta")).shape == (2, 24, 2, 3)


def test_a_number_of_channels_that_does_not_fit_is_torchs_error():
    _, patched, _ = both()
    with HALVES, pytest.raises(RuntimeError, match="channels"):
        patched(images(2, 4, 8, 12))


@pytest.mark.parametrize("of", ["image", "weight"])
def test_nhwc_is_handed_on_as_a_convolution_does(of):
    plain, patched, _ = both()
    x = images()
    if of == "image":
        x = x.to(memory_format=torch.channels_last)
    else:
        plain, patched = (one.to(memory_format=torch.channels_last) for one in (plain, patched))
    with HALVES:
        assert patched(x).stride() == plain(x).stride()
        assert patched(x).is_contiguous(memory_format=torch.channels_last)


@one_test(
    "options",
    [
        {"stride": 2},
        {"padding": 1},
        {"padding": 2, "padding_mode": "reflect"},
        {"dilation": 2},
        {"groups": 3},
        {"in_channels": 8},
        {"kernel_size": 1, "stride": 1},
    ],
)
def test_other_convolutions_stay(options):
    _, patched, done = both(**options)
    assert (done.swapped, done.left) == ([], [])
    assert type(patched) is nn.Conv2d


def test_a_forward_that_somebody_replaced_stays_with_the_reason():
    model = nn.Conv2d(**PLAIN)
    model.forward = lambda x: x
    done = _patch.patch(model)
    assert [one.why for one in done.left] == ["its forward was replaced by somebody"]
    assert model(1) == 1


def test_a_parametrized_weight_stays():
    model = nn.utils.parametrizations.weight_norm(nn.Conv2d(**PLAIN))
    assert not _patch.patch(model).swapped


def test_a_compiler_takes_it_as_one_graph_without_a_convolution():
    plain, patched, _ = both()
    seen = []

    def backend(graph, _):
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    compiled = torch.compile(patched, fullgraph=True, backend=backend, dynamic=False)
    with HALVES:
        y = compiled(images())
        wanted = plain(images())
    assert not any("conv" in str(target) for target in seen)
    assert (y - wanted).float().norm() < 1e-2 * wanted.float().norm()


def test_hooks_are_called():
    _, patched, _ = both()
    calls = []
    patched.register_forward_hook(lambda *_: calls.append("after"))
    with HALVES:
        patched(images())
    assert calls == ["after"]
