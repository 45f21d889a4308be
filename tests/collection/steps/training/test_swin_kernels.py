"""What whole models ask of kernels in inference: each has a plan for all of it, and compiles without a spill.

Models run on tensors of torch's device "meta", which have sizes and no memory.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from harness.collection.models import MODELS
from harness.collection.models.swin import Swin, SwinBlock, window_partition
from harness.collection.nn import _attention, _inference, _kernels, _rows, _swin_inference, _swin_scales
from harness.collection.steps.training._swin_int8 import PLANS, mergings_of, products_of
from harness.model import Case
from harness.ops import Context
from tests.one_test import one_test
from tests.rare import rare

HALF = torch.float16


@pytest.fixture(scope="module")
def tools() -> ModuleType:
    """tests/cuda/test_kernels.py, which knows how to prepare launches where there is no GPU."""
    spec = importlib.util.spec_from_file_location("kernels", Path(__file__).parents[2] / "test_kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def walked(tools, monkeypatch):
    """Function that runs a model on so many images, and gives what it compiled, called and multiplied."""
    found = SimpleNamespace(compiled=set(), called=[], multiplied=set())

    def load(file, _entry, macros):
        found.compiled.add(tools.Request(file, tuple(sorted(macros.items()))))
        return tools.FakeKernel()

    class Multiplied(tools.FakeMatmul):
        def __init__(self, product, *_):
            super().__init__()
            found.multiplied.add(((product.m, product.n, product.k), product.out))

    def run(launch, *_tensors):
        call = launch.wanted
        op = call.op
        op.variants["tuned"].prepare(Context(call.case, None, None, SimpleNamespace(initial_seed=lambda: 1), op))
        found.called.append(call)

    def obstacle(call):
        there = replace(call, device=torch.device("cuda", 0))
        assert there.obstacle is None, f"{call}: {there.obstacle}"

    tools.pretend_gpu(monkeypatch, load)
    for module in (_inference, _swin_inference):
        monkeypatch.setattr(module, "on_gpu", lambda _: True)
    for module in (_inference, _kernels, _swin_inference):
        monkeypatch.setattr(module, "on", lambda _: nullcontext())
    monkeypatch.setattr(_inference, "_matmul", lambda _, product: Multiplied(product))
    monkeypatch.setattr(_kernels.KernelLaunch, "__call__", run)
    monkeypatch.setattr(_kernels.OpKernels, "__call__", _kernels.OpKernels.found)
    monkeypatch.setattr(_kernels, "_obstacle", obstacle)
    # Registered operators would only make empty outputs.
    monkeypatch.setattr(_swin_inference, "window_attention", _attention._attention_run)
    monkeypatch.setattr(_swin_inference, "layer_norm", lambda *given: _rows._layer_norm_run(*given)[0])
    monkeypatch.setattr(_swin_inference, "_quantiser", quantiser)
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda *_, **__: None)
    monkeypatch.setattr(torch, "_addmm_activation", lambda bias, x, weight, use_gelu: torch.addmm(bias, x, weight))

    def walk(config, images, plan=None):
        with torch.device("meta"), torch.no_grad():
            model = Swin(config).to(HALF).eval()
            blocks = [part for part in model.modules() if isinstance(part, SwinBlock)]
            pair, stages = (torch.ones(1), torch.ones(1)), len(config.depths)
            scales = _swin_scales.Scales([_swin_scales.BlockScales((pair,) * 4)] * len(blocks), [pair] * (stages - 1))
            options = {"scales": scales, "second": plan.second, "merging": plan.merging} if plan else {}
            made = _swin_inference.SwinInference(model, **options)
            assert made(torch.empty(images, 3, 224, 224, dtype=HALF)).shape == (images, config.classes)
        return found

    return walk


def quantiser(_dtype, _device, rows, columns):
    """The catalogue's launch, prepared for these sizes and not called."""
    op = _swin_inference.quantize.OP
    case = Case("quantize", "tuned", "float16", (("M", rows), ("C", columns)), (("scales", "tensor"),))
    op.variants["tuned"].prepare(Context(case, None, None, None, op))
    return lambda _: None


# Two blocks of each stage have all sizes and shifts of a model.
CONFIGS = {name: replace(MODELS[name], depths=(2, 2, 2, 2)) for name in ("swin_tiny", "swin_base", "swin_large")}


# Every model with every plan, and each of both with one image and with many.
TRIED = [
    (rare if first or number else pytest.param)(name, (1, 128)[(number + first) % 2], plan)
    for first, name in enumerate(CONFIGS)
    for number, plan in enumerate(["halves", *PLANS])
]


@pytest.mark.parametrize(("name", "images", "plan"), TRIED)
def test_each_kernel_has_a_plan(name, images, plan, walked):
    config, plan = CONFIGS[name], PLANS.get(plan)
    found = walked(config, images, plan)
    names = [call.op.name for call in found.called]
    assert names.count("window_attention_packed") == 8
    rows = [dict(request.macros) for request in found.compiled if request.file.stem == "residual_layer_norm"]
    channels = {config.channels(stage) for stage in range(4)}
    if plan and plan.merging:
        wide = {4 * config.channels(stage) for stage in range(3)}
        too_long = {size for size in wide if _inference.lanes_of(size) is None}
        channels |= wide - too_long
        assert names.count("layer_norm") == 1 + len(too_long)  # of patches, and of rows that are too long
    else:
        assert names.count("layer_norm") == 1 + 3  # of patches, and where stages meet
    assert {macros["CHANNELS"] for macros in rows} == channels
    assert {macros["SHIFT_X"] for macros in rows} == {-1, 0, 3}
    assert any("RESIDUAL" in macros for macros in rows) == bool(plan and plan.merging)
    outs = {"int8", plan.second, plan.merging} if plan else {"halves"}
    assert {macros["X"] for macros in rows} == {0, *(X[out] for out in outs if out)}
    assert found.multiplied == (set(_products(plan, config, images)) if plan else set())


X = {"halves": 1, "int8": 2, "int32": 3}


def _products(plan, config, images):
    """What a model multiplies in int8, and what each product gives."""
    for place, product in enumerate(products_of(config, images)):
        yield product, plan.second if place % 4 == 3 else "int8"
    if plan.merging:
        yield from ((product, plan.merging) for product in mergings_of(config, images))


@pytest.mark.slow  # compiled.csv has the spills of each kernel, and tests/collection/test_kernels.py looks there
@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_compile_without_a_spill(name, tools, walked, kept):
    walked(CONFIGS[name], 1)
    for plan in ("int8", "int8_merged", "int8_wide"):
        found = walked(CONFIGS[name], 1, PLANS[plan]).compiled
    ours = [request for request in found if request.file.stem in ("residual_layer_norm", "dequantize_int8")]
    for request in tools.representatives(sorted(ours, key=lambda one: one.name), numbers=False):
        for kernel in request.compiled(tools.MEASURED).result(kept).values():
            assert kernel.local_bytes == 0, request.name


@one_test(("side", "window", "shift"), [(56, 7, 0), (56, 7, 3), (7, 7, 0), (6, 3, 1)])
def test_the_map_of_the_kernel_is_that_of_windows(side, window, shift):
    """The twin of row_of in residual_layer_norm.cu."""
    pixel = torch.arange(2 * side * side)
    image, place = pixel // side**2, pixel % side**2
    down, across = ((one + side - shift) % side for one in (place // side, place % side))
    of_image = side // window
    row = ((image * of_image + down // window) * of_image + across // window) * window**2
    row += down % window * window + across % window
    cut = window_partition(pixel.view(2, side, side, 1), window, shift).flatten()
    assert cut[row].equal(pixel)


@one_test(
    ("channels", "lanes"),
    [
        (8, 1),
        (32, 1),
        (96, 4),
        (128, 4),
        (192, 8),
        (1024, 32),
        (1536, 32),
        (40, None),
        (12, None),
        (0, None),
        (2048, None),
    ],
)
def test_lanes_share_a_row_evenly_or_not_at_all(channels, lanes):
    assert _inference.lanes_of(channels) == lanes


def test_what_the_kernel_cannot_do_is_left_to_torch():
    call = _inference.ResidualNormCall(56, 96)
    assert "float32" in call.obstacle(torch.empty(1, 56, 56, 96, device="meta"))
    assert call.obstacle(torch.empty(1, 56, 56, 96, dtype=HALF, device="meta")) is None
    assert call.obstacle(torch.empty(0, 56, 56, 96, dtype=HALF, device="meta")) is not None
    many = torch.empty(1, 1, dtype=HALF, device="meta").expand(2**26, 96)
    assert "32 bits" in call.obstacle(many)
    orders = _inference.RowOrder(7), _inference.RowOrder(8)
    assert "one size" in _inference.ResidualNormCall(56, 96, *orders).obstacle(torch.empty(1, 56, 56, 96, dtype=HALF))


def test_the_sum_with_a_residual_has_the_norms_epsilon(monkeypatch):
    residual = torch.full((1, 2, 2, 8), 1e-2).mul(torch.arange(8)).to(HALF)
    norms = [torch.nn.LayerNorm(8, eps=eps) for eps in (1e-5, 1e-2)]
    for norm in norms:
        _, y = _inference.residual_norm(residual, None, norm)
        torch.testing.assert_close(y, norm(residual.float()).to(HALF))
    given = []
    monkeypatch.setattr(_inference, "on_gpu", lambda _: True)
    monkeypatch.setattr(_inference, "on", lambda _: nullcontext())
    monkeypatch.setattr(
        _inference.cuda, "load", lambda _file, _entry, macros: given.append(macros) or (lambda *_: None)
    )
    for norm in norms:
        _inference.residual_norm(residual, None, norm.to(HALF))
    assert [macros.get("EPS") for macros in given] == [None, "0.01f"]


def test_what_does_not_lie_as_kernels_take_it_is_left_to_torch(monkeypatch):
    """Kernels load packs of 16 bytes, and vectors in halves: other tensors would be read wrongly, or stop the GPU."""
    loaded = []
    monkeypatch.setattr(_inference, "on_gpu", lambda _: True)
    monkeypatch.setattr(_inference, "on", lambda _: nullcontext())
    monkeypatch.setattr(_inference.cuda, "load", lambda *_: loaded.append(1) or (lambda *_: None))
    room = torch.zeros(2 * 2 * 8 + 1, dtype=HALF)
    images, beside = room[:-1].view(1, 2, 2, 8), room[1:].view(1, 2, 2, 8)
    halves, floats = torch.nn.LayerNorm(8).to(HALF), torch.nn.LayerNorm(8)
    for residual, x, norm, kernels in (
        (images, images, halves, 1),
        (beside, None, halves, 0),
        (images, beside, halves, 0),
        (images, images.float(), halves, 0),
        (images, None, floats, 0),
        (images, images.transpose(1, 2), halves, 0),
    ):
        loaded.clear()
        _inference.residual_norm(residual, x, norm)
        assert len(loaded) == kernels
    numbers, scale = torch.zeros(65, dtype=torch.int8), torch.ones(1)
    for values, bias, kernels in (
        (numbers[:64], torch.zeros(64, dtype=HALF), 1),
        (numbers[1:], torch.zeros(64, dtype=HALF), 0),
        (numbers[:64], torch.zeros(64), 0),
        (numbers[:64], torch.zeros(65, dtype=HALF)[1:], 0),
    ):
        loaded.clear()
        _inference.dequantise(_inference.Quantised(values.view(1, 64), scale, bias), HALF)
        assert len(loaded) == kernels


def test_a_product_of_zeros_in_int8_gives_zeros():
    linear = torch.nn.Linear(4, 4)
    scales = _swin_scales._scales(linear, [0.0, 0.0])
    for weight in (torch.zeros(4, 4), torch.ones(4, 4)):
        product = _inference.Int8Product(weight, *scales)
        assert not product(_inference.quantised(torch.zeros(3, 4), scales[0])).any()
        assert torch.isfinite(product._alpha).all()


def test_sums_in_int32_are_exact_and_their_scale_follows():
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(size, generator=generator) for size in ((24, 16), (5, 16)))
    x_scale = torch.full((1,), 0.03)
    product = _inference.Int8Product(weight, x_scale, None)
    numbers = _inference.quantised(x, x_scale)
    made = product(numbers)
    assert (made.dtype, product.out) == (torch.int32, "int32")
    assert made.long().equal(numbers.long() @ product.weight.long().t())
    want = (numbers.double() * 0.03) @ (product.weight.double() * (weight.abs().max() / 127).double()).t()
    torch.testing.assert_close(_inference.dequantised(_inference.Quantised(made, product.y_scale)).double(), want)


@pytest.mark.parametrize("numbers", [torch.int8, torch.int32])
def test_integers_without_a_residual_are_what_they_stand_for(numbers):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-100, 100, (2, 4, 4, 8), generator=generator).to(numbers)
    bias, norm = torch.randn(8, generator=generator).to(HALF), torch.nn.LayerNorm(8)
    given = _inference.Quantised(x, torch.full((1,), 0.25), bias)
    h, y = _inference.residual_norm(None, given, norm)
    assert h.equal((x.float() / 4 + bias.float()).to(HALF))
    torch.testing.assert_close(y, norm(h.float()).to(HALF))
    both, _ = _inference.residual_norm(h, given)
    assert both.equal((h.float() + x.float() / 4 + bias.float()).to(HALF))


def test_products_in_int8_refuse_what_they_cannot_do(monkeypatch):
    product = _inference.Int8Product(torch.ones(4, 8), torch.ones(1), torch.ones(1))
    with pytest.raises(RuntimeError, match="x lies on meta, the weight on cpu"):
        product(torch.empty(3, 8, dtype=torch.int8, device="meta"))
    monkeypatch.setattr(_inference, "on_gpu", lambda _: True)
    monkeypatch.setattr(_inference, "on", lambda _: nullcontext())
    monkeypatch.setattr(_inference, "capturing", lambda: True)
    with pytest.raises(RuntimeError, match="with 3 rows once before"):
        product(torch.empty(3, 8, dtype=torch.int8))


@pytest.mark.slow  # test_what_does_not_lie_as_kernels_take_it_is_left_to_torch has inputs of other shapes
def test_no_images_have_no_logits(walked):
    assert not walked(CONFIGS["swin_tiny"], 0, PLANS["int8_wide"]).compiled
