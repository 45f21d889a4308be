"""Inference in int8, whose kernels torch plays here: what it loses, which products are in int8, and what they give."""

from __future__ import annotations

import math
from functools import cache, partial

import pytest
import torch

from harness import metrics
from harness.collection.models import MODELS
from harness.collection.models.swin import PatchMerging, SwinBlock
from harness.collection.ops.gemm import _int8
from harness.collection.steps.training import _inference, _swin_int8, swin_infer
from harness.collection.steps.training._figures import BLOCK_SNR, MERGING_SNR, WEIGHTS
from harness.collection.steps.training._swin_int8 import PLANS
from harness.metrics import Subject
from harness.model import Case
from tests.rare import rare


@pytest.fixture(autouse=True)
def one_warm_call(monkeypatch):
    """A CPU's libraries choose no kernels in the others."""
    monkeypatch.setattr(_inference, "WARM", 1)


def played(monkeypatch, variant, make):
    """Let `sdpa` launch what a variant of ours makes; the check takes it for that variant."""
    monkeypatch.setattr(swin_infer, "with_sdpa", make)
    monkeypatch.setattr(swin_infer, "OF_INT8", ("sdpa",) if variant.startswith("int8") else ())


def in_int8(name):
    return partial(swin_infer.with_int8, plan=PLANS[name])


@pytest.mark.slow  # the figures below are of logits that were right
@pytest.mark.parametrize("name", PLANS)
def test_int8_is_right_and_loses_what_int8_loses(name, ready, monkeypatch):
    """In bfloat16. The figures below have float16."""
    played(monkeypatch, name, in_int8(name))
    with ready("swin_infer", "sdpa", "bfloat16") as session:
        assert session.check() is None
        assert 25 < dict(session.facts)[_int8.SNR] < 45


@pytest.mark.slow  # the tests below have a lost bias, bytes and refusals
@pytest.mark.parametrize("name", ["int8_wide", *(rare(name) for name in PLANS if name != "int8_wide")])
def test_int8_agrees_with_weights_and_inputs_quantised_and_restored(name, ready, monkeypatch):
    """The oracle is the model itself, with fake quantisation around its linear layers."""
    made, make = {}, in_int8(name)

    def both(ctx):
        made["fake"] = faked(swin_infer.model_of(ctx, None).double(), make(ctx))
        return make(ctx)

    played(monkeypatch, name, both)
    with ready("swin_infer", "sdpa") as session, torch.inference_mode():
        images = swin_infer.make(session._ctx)["images"]
        ours, wanted = make(session._ctx)(images), made["fake"](images.double())
    noise = (ours.double() - wanted).square().mean() / wanted.square().mean()
    # A number at a border is rounded to another integer where halves differ from float64, as numbers after it are.
    assert -10 * math.log10(noise) > 33


def faked(model, ours):
    """Round what each layer in int8 is given to the steps of its scales, and what it makes but for its bias.

    Sums in int32 aren't rounded.
    """

    def rounded(x, scale):
        return (x / scale).round().clamp(-128, 127) * scale

    modules = [part for part in model.modules() if isinstance(part, SwinBlock | PatchMerging)]
    for module, part in zip(modules, ours._parts, strict=True):
        is_block = isinstance(module, SwinBlock)
        linears = (
            (module.attn.qkv, module.attn.proj, module.mlp["0"], module.mlp["3"]) if is_block else [module.reduction]
        )
        for linear, product in zip(linears, part.products, strict=bool(part.products)):
            weight = rounded(linear.weight, linear.weight.abs().max() / 127)

            def forward(x, weight=weight, bias=linear.bias, product=product):
                made = rounded(x, product.x_scale.double()) @ weight.t()
                made = made if product.out == "int32" else rounded(made, product.y_scale.double())
                return made if bias is None else made + bias

            linear.forward = forward
    return model


def figures_of(name, ready, monkeypatch):
    """Facts of a model in int8, with the signal to noise of its parts."""
    played(monkeypatch, name, in_int8(name))
    with ready("swin_infer", "sdpa") as session:
        assert session.check() is None
        session.report()
        return dict(session.facts)


@pytest.fixture(scope="module")
def figures(ready):
    """figures(name): the figures of a plan, which are found once."""

    @cache
    def of(name):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_inference, "WARM", 1)
            return figures_of(name, ready, patch)

    return of


@pytest.mark.slow
def test_int32_makes_the_parts_more_exact_that_have_it(figures):
    figures = {name: figures(name) for name in PLANS}
    block, merging = ({name: found.get(key) for name, found in figures.items()} for key in (BLOCK_SNR, MERGING_SNR))
    assert block["int8_wide_second"] > block["int8_merged"]
    assert block["int8_wide_second"] == block["int8_wide"]
    assert block["int8_wide_merging"] == block["int8_merged"] == block["int8"]
    assert merging["int8_wide_merging"] > merging["int8_merged"] + 0.2
    assert merging["int8_wide_merging"] == merging["int8_wide"] < merging["int8"] - 20
    assert all(value > 25 for value in (*block.values(), *merging.values()))
    assert all(25 < found[_int8.SNR] < 45 for found in figures.values())


def test_the_energy_of_errors_is_compared_with_another_variant_s():
    over = Subject(1.0, facts={BLOCK_SNR: 30.0})
    own = Subject(1.0, facts={BLOCK_SNR: 33.0}).against(over)
    assert metrics.METRICS["block_error"].value(own) == pytest.approx(10**-0.3)
    assert metrics.METRICS["merging_error"].value(own) is None
    assert metrics.METRICS["block_error"].value(Subject(1.0, facts={BLOCK_SNR: 33.0})) is None


@pytest.mark.parametrize("name", [name if name == "int8_merged" else rare(name) for name in PLANS])
def test_weights_take_a_quarter_of_the_bytes_in_int8(figures, name):
    """But for what stays in halves: norms, biases, both ends of the model, and without a plan the products between."""
    config = MODELS["swin_toy"]
    blocks = sum(depth * 12 * config.channels(stage) ** 2 for stage, depth in enumerate(config.depths))
    merging = sum(8 * config.channels(stage) ** 2 for stage in range(len(config.depths) - 1))
    quantised = blocks if name == "int8" else blocks + merging
    assert figures(name)[WEIGHTS] == 2 * config.parameters() - quantised


@pytest.mark.parametrize(("variant", "bytes_each"), [rare("float32", 4), ("eager", 2)])
def test_weights_take_the_bytes_of_their_type(ready, variant, bytes_each):
    with ready("swin_infer", variant) as session:
        assert dict(session.facts)[WEIGHTS] == bytes_each * MODELS["swin_toy"].parameters()


@pytest.mark.parametrize("lost", [rare("qkv"), rare("proj"), rare("first"), "second"])
def test_a_bias_that_int8_loses_is_found(lost, ready, monkeypatch):
    def without(ctx):
        model = in_int8("int8")(ctx)
        for _, blocks in model._stages:
            for block in blocks:
                linear = getattr(block, lost)
                linear.bias = torch.nn.Parameter(torch.zeros_like(linear.bias))
        return model

    played(monkeypatch, "int8", without)
    with ready("swin_infer", "sdpa", "bfloat16") as session:
        assert "dB" in session.check()


def test_without_nvmath_int8_says_what_it_needs(catalogue, monkeypatch):
    monkeypatch.setattr(_swin_int8.cublaslt, "missing", lambda: "needs nvmath-python")
    op = catalogue["swin_infer"]
    names = {"int8", *(f"{name}_graph" for name in PLANS)}
    assert names == swin_infer.OF_INT8
    for name in names:
        assert op.variants[name].unsupported(None) == "needs nvmath-python"


def test_a_product_that_cublaslt_refuses_is_named(monkeypatch):
    def case(model):
        return Case("swin_infer", "int8", "float16", (("B", 2),), (("model", model),))

    def refusing(refused):
        monkeypatch.setattr(_swin_int8.cublaslt, "obstacle", lambda gemm: "no" if refused(gemm) else None)

    monkeypatch.setattr(_swin_int8.cublaslt, "missing", lambda: None)
    no_int8 = {name: partial(_swin_int8.no_int8, plan) for name, plan in PLANS.items()}
    refusing(lambda gemm: gemm.n == 4 * gemm.k == 384)
    assert no_int8["int8"](case("swin_tiny")) == "a product of 6272 x 96 with 96 x 384, to int8: no"
    assert no_int8["int8"](case("swin_base")) is None
    refusing(lambda gemm: gemm.out == "int32" and gemm.k == 4 * gemm.n)
    assert [name for name in PLANS if no_int8[name](case("swin_tiny"))] == ["int8_wide_second", "int8_wide"]
    refusing(lambda gemm: gemm.out == "int32" and gemm.k == 2 * gemm.n)
    assert [name for name in PLANS if no_int8[name](case("swin_tiny"))] == ["int8_wide_merging", "int8_wide"]


def test_operations_in_int8_are_those_of_its_products():
    config = MODELS["swin_tiny"]
    found = {name: dict(_swin_int8.arithmetic(plan, {"model": "swin_tiny", "B": 2}, 2)) for name, plan in PLANS.items()}
    assert all(sum(parts.values()) == 2 * config.flops() for parts in found.values())
    merging = sum(2 * rows * outputs * inputs for rows, outputs, inputs in _swin_int8.mergings_of(config, 2))
    assert merging == 2 * 2 * sum(config.side(stage + 1) ** 2 * 8 * config.channels(stage) ** 2 for stage in range(3))
    assert found["int8_wide"]["int8"] == found["int8"]["int8"] + merging
