"""Inference on a GPU: each kernel does what torch does in its place, and each variant's logits pass the check."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from harness import devices
from harness.collection.models import MODELS
from harness.collection.models.swin import window_partition
from harness.collection.nn import _inference as inference
from harness.collection.nn import _kernels
from harness.collection.ops.gemm import _int8
from harness.collection.steps.training import _facts, _figures, swin_infer
from harness.collection.steps.training._swin_int8 import PLANS
from harness.cuda import cublaslt
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops import Tensors
from harness.session import Session

pytestmark = pytest.mark.gpu
HALVES = [torch.float16, torch.bfloat16]
SIDES = {16: 14, 96: 56, 128: 28, 384: 14, 768: 7, 1024: 7, 1536: 7}
"""Pixels of an image's side by channels."""
COMPILED = [name for name in swin_infer.OP.variants if name.startswith(("compile", "autotune"))]
EAGER = [name for name in swin_infer.OP.variants if name not in COMPILED]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def by_torch(monkeypatch, function, *given, **options):
    """What torch makes in a kernel's place."""
    with monkeypatch.context() as patch:
        patch.setattr(inference, "on_gpu", lambda _: False)
        return function(*given, **options)


def normal(*shape, dtype):
    return torch.randn(shape, device="cuda").to(dtype)


def integers(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")


def assert_near(got, want, dtype, units=4):
    """Halves may differ by some units in the last place, int8 by one where a value lies at the border of two integers.

    A sum with a residual is rounded twice as far where it lies at such a border itself, and so is its normalised form.
    """
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype == torch.int8:
        off = (got.int() - want.int()).abs()
        assert off.max() <= (1 if dtype == torch.float16 else 4)
        assert off.float().mean() < 0.01
    else:
        unit = torch.finfo(dtype).eps
        torch.testing.assert_close(got.float(), want.float(), rtol=2 * unit, atol=units * unit)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("channels", SIDES)
@pytest.mark.parametrize("x", ["none", "halves", "int8", "int32"])
@pytest.mark.parametrize("y", ["none", "halves", "int8"])
def test_residual_norm(dtype, channels, x, y, monkeypatch):
    side, images = SIDES[channels], 3
    order = inference.RowOrder(7, 3 if side > 7 else 0)
    residual = normal(images, side, side, channels, dtype=dtype)
    norm = nn.LayerNorm(channels, device="cuda", dtype=dtype)
    for vector in (norm.weight, norm.bias):
        nn.init.normal_(vector)
    scale, y_scale = torch.full((1,), 0.05, device="cuda"), torch.full((1,), 0.03, device="cuda")
    for x_order, y_order in ((inference.IN_IMAGES, order), (order, inference.IN_IMAGES)):
        shape = (-1, 49, channels) if x_order.window else residual.shape
        numbers = integers(*residual.shape).view(shape)
        given = {
            "none": None,
            "halves": normal(*residual.shape, dtype=dtype).view(shape),
            "int8": inference.Quantised(numbers, scale, normal(channels, dtype=dtype)),
            "int32": inference.Quantised(97 * numbers.int(), scale / 97, normal(channels, dtype=dtype)),
        }[x]
        options = {"x_order": x_order, "y_order": y_order, "y_scale": y_scale if y == "int8" else None}
        call = residual, given, None if y == "none" else norm
        if x == y == "none":
            continue
        with torch.no_grad():
            got = inference.residual_norm(*call, **options)
            want = by_torch(monkeypatch, inference.residual_norm, *call, **options)
        assert_near(got[0], want[0], dtype)
        assert (got[1] is None) == (want[1] is None) == (y == "none")
        if y != "none":
            assert_near(got[1], want[1], dtype, units=32)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("channels", SIDES)
@pytest.mark.parametrize("kind", [torch.int8, torch.int32])
def test_integers_without_a_residual(dtype, channels, kind, monkeypatch):
    side, norm = SIDES[channels], nn.LayerNorm(channels, device="cuda", dtype=dtype)
    scale, y_scale = torch.full((1,), 0.05, device="cuda"), torch.full((1,), 0.03, device="cuda")
    given = inference.Quantised(integers(3, side, side, channels).to(kind), scale, normal(channels, dtype=dtype))
    for options in ({}, {"y_scale": y_scale, "y_order": inference.RowOrder(7, 0)}):
        with torch.no_grad():
            got = inference.residual_norm(None, given, norm, **options)
            want = by_torch(monkeypatch, inference.residual_norm, None, given, norm, **options)
        assert_near(got[0], want[0], dtype)
        assert_near(got[1], want[1], dtype, units=32)


def test_windows_of_a_residual_are_those_of_the_model():
    """Independently of what torch does in the kernel's place: pixels keep their numbers, and change their places."""
    residual = torch.zeros(2, 14, 14, 16, device="cuda", dtype=torch.float16)
    x = torch.arange(2 * 14 * 14 * 16, device="cuda").fmod(2039).half().view(2, 14, 14, 16)
    order = inference.RowOrder(7, 3)
    h, _ = inference.residual_norm(residual, window_partition(x, 7, 3), x_order=order)
    assert h.equal(x)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(3, 49, 48), (1, 16), (5, 14, 14, 384), (2, 7, 7, 6144)])
def test_what_follows_a_product_of_int8(dtype, shape, monkeypatch):
    scale, y_scale = torch.full((1,), 0.03, device="cuda"), torch.full((1,), 0.02, device="cuda")
    x = inference.Quantised(integers(*shape), scale, normal(shape[-1], dtype=dtype))
    for function, given in ((inference.dequantise, (x, dtype)), (inference.gelu_quantise, (x, y_scale, dtype))):
        assert_near(function(*given), by_torch(monkeypatch, function, *given), dtype)


@pytest.mark.parametrize("out", ["int8", "int32"])
@pytest.mark.parametrize("sizes", [(49, 288, 96), (392, 96, 384), (6272, 768, 3072), (1568, 48, 16)])
def test_a_product_of_int8(sizes, out, monkeypatch):
    if reason := cublaslt.obstacle(inference.int8_gemm(*sizes, out)):
        pytest.skip(reason)
    rows, outputs, inputs = sizes
    x, weight = integers(rows, inputs), normal(outputs, inputs, dtype=torch.float16)
    scales = torch.full((1,), 0.02, device="cuda"), torch.full((1,), 0.5, device="cuda")
    product = inference.Int8Product(weight, scales[0], scales[1] if out == "int8" else None)
    got, want = product(x), by_torch(monkeypatch, product, x)
    assert want.unique().numel() > 50
    if out == "int32":
        assert got.equal(want), "sums of integers are exact"
    else:
        assert_near(got, want, torch.float16)


def case_of(variant, model, images=4, dtype="float16"):
    return Case("swin_infer", variant, dtype, (("B", images),), (("model", model),), device="cuda")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("model", ["swin_toy", "swin_tiny"])
@pytest.mark.parametrize("variant", EAGER)
def test_logits_are_right(variant, model, dtype, catalogue):
    with Session(case_of(variant, model, dtype=dtype), catalogue["swin_infer"], devices.kinds()["cuda"]) as session:
        if obstacle := session.obstacle():
            pytest.skip(str(obstacle))
        session.prepare()
        assert session.check() is None
        assert session.warnings == []
        # What the reference computes, too, is off by nothing, which has no figure in decibels.
        assert (_int8.SNR in dict(session.facts)) == (variant != "float32")


@pytest.mark.parametrize(
    "variant", ["eager", "sdpa_graph", "compile", "fused", "graph", "int8_graph", "int8_wide_graph"]
)
def test_a_measurement_has_memory_energy_and_a_busy_share(variant, catalogue):
    """A graph's calls take what its capture took: more than the model's weights and their images."""
    case = case_of(variant, "swin_toy")
    if variant.startswith("int8") and (reason := catalogue["swin_infer"].variants[variant].unsupported(case)):
        pytest.skip(reason)
    found = measure(Job(case, Timing(precision=0.5, max_time=0.1)), catalogue["swin_infer"], devices.kinds()["cuda"])
    assert found.status == "ok", found.error
    facts, config = dict(found.facts), MODELS["swin_toy"]
    least = facts[_figures.WEIGHTS] + 2 * 4 * 3 * config.image**2
    assert least < facts[_figures.PEAK_MEMORY] < 2**30
    assert (facts[_figures.WEIGHTS] < 2 * config.parameters()) == ("int8" in variant)
    assert facts[_figures.ACTIVATIONS] > 2 * 4 * config.channels(0) * config.side(0) ** 2
    assert (_figures.BLOCK_SNR in facts) == ("int8" in variant)
    assert facts[_figures.ENERGY] > 0
    assert 0 < facts[_facts.BUSY] <= 1


@pytest.mark.parametrize("variant", ["graph", "sdpa_graph", "int8_graph"])
def test_a_replay_takes_the_images_of_its_call(variant, catalogue):
    op = catalogue["swin_infer"]
    with Session(case_of(variant, "swin_toy"), op, devices.kinds()["cuda"]) as session:
        if obstacle := session.obstacle():
            pytest.skip(str(obstacle))
        session.prepare()
        found = []
        for seed in (1, 2, 1):
            generator = torch.Generator("cuda").manual_seed(seed)
            tensors = Tensors(images=swin_infer.images_of(session._ctx, 4, generator))
            session._prepared.launch(tensors)
            found.append(tensors.logits.clone())
        assert found[0].equal(found[2])
        assert not found[0].equal(found[1])


@pytest.mark.parametrize(("variant", "plan"), [("fused", ""), ("int8", ""), ("fused", "int8_wide")])
def test_all_of_a_model_runs_in_our_kernels_and_never_waits(variant, plan, catalogue, monkeypatch):
    """No function falls back to torch, and the host runs ahead of the device."""
    if plan:
        monkeypatch.setattr(swin_infer, "with_ours", partial(swin_infer.with_int8, plan=PLANS[plan]))
        monkeypatch.setattr(swin_infer, "OF_INT8", {variant})
    with Session(case_of(variant, "swin_tiny"), catalogue["swin_infer"], devices.kinds()["cuda"]) as session:
        if obstacle := session.obstacle():
            pytest.skip(str(obstacle))
        session.prepare()
        (call,) = session.calls()
        for name in ("_residual_norm_by_torch", "dequantised", "quantised"):
            monkeypatch.setattr(inference, name, None)
        before = _kernels.LAUNCHED["window_attention_packed"]
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        blocks = sum(MODELS["swin_tiny"].depths)
        assert _kernels.LAUNCHED["window_attention_packed"] - before == blocks


def test_gelu_in_a_product_is_the_tanh_form():
    """The forms differ most below -1.5, where numbers in halves are fine enough to tell them apart."""
    x, weight = normal(512, 96, dtype=torch.float16), normal(384, 96, dtype=torch.float16) / 10
    bias = normal(384, dtype=torch.float16)
    got = torch._addmm_activation(bias, x, weight.t(), use_gelu=True).double()
    sums = nn.functional.linear(x.double(), weight.double(), bias.double())
    here = (sums < -1.5) & (sums > -3)
    off = {form: (got - nn.functional.gelu(sums, approximate=form))[here].abs() for form in ("tanh", "none")}
    assert off["tanh"].mean() < off["none"].mean() / 2
    assert off["none"].max() < 2e-3
