"""The check of inference: honest logits pass in both halves, and whatever an operator loses is found."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional

from harness import metrics
from harness.collection.models import MODELS, swin
from harness.collection.models.swin import PatchMerging, SwinBlock
from harness.collection.ops.gemm import _int8
from harness.collection.steps.training import _facts, _swin_int8, swin_infer
from harness.collection.steps.training._figures import BLOCK_SNR, MERGING_SNR, WEIGHTS
from harness.collection.steps.training._operators import of_windows
from harness.collection.steps.training._rungs import AUTOTUNE, DEFAULT
from harness.collection.steps.training._swin_int8 import PLANS
from harness.metrics import Subject
from harness.model import Case


@pytest.fixture(autouse=True)
def one_warm_call(monkeypatch):
    """A CPU's libraries choose no kernels in the others."""
    monkeypatch.setattr(swin_infer, "WARM", 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("variant", ["float32", "eager", "eager_tanh", "sdpa"])
def test_logits_in_halves_are_right(variant, dtype, ready):
    with ready("swin_infer", variant, dtype) as session:
        assert session.check() is None
        assert session.warnings == []
        assert len(session.calls()) == 1
        assert dict(session.facts)[_int8.SNR] > 40


def instead(monkeypatch, change):
    """Let the variant launch `change(model)`. The reference is another model."""
    launching = swin_infer.launching
    monkeypatch.setattr(swin_infer, "launching", lambda ctx, made: launching(ctx, lambda ctx: change(made(ctx))))


def test_memory_and_energy_of_calls_are_asked_for(ready, monkeypatch):
    """On a CPU there are none. What the model itself takes counts, so memory is looked at before it is made."""
    seen, made = [], swin_infer.as_written
    monkeypatch.setattr(_facts, "allocated", lambda _: seen.append("before") or 7)
    monkeypatch.setattr(swin_infer, "as_written", lambda ctx: seen.append("model") or made(ctx))
    monkeypatch.setattr(_facts, "with_memory", lambda _, call, before: seen.append(before) or call())
    monkeypatch.setattr(_facts, "report_steps", lambda _, call, images: seen.append((call(), images)))
    with ready("swin_infer", "eager", "bfloat16") as session:
        assert seen == ["before", "model", 7]
        session.report()
    assert seen[3:] == [(None, 8)]


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0, 0.98])
def test_other_logits_are_wrong(factor, ready, monkeypatch):
    instead(monkeypatch, lambda model: lambda images: factor * model(images))
    with ready("swin_infer", "eager") as session:
        assert found(session)


def found(session) -> bool:
    """Whether the check says anything: what is off by little in a library's result is a warning."""
    return session.check() is not None or bool(session.warnings)


def test_a_call_without_logits_is_wrong(ready, monkeypatch):
    monkeypatch.setattr(swin_infer, "launching", lambda *_: lambda _: None)
    with ready("swin_infer", "eager") as session:
        assert session.check() == "logits: the call made none"


def test_a_difference_of_one_image_is_wrong(ready, monkeypatch):
    instead(monkeypatch, lambda model: lambda images: model(images)[[1, 0, *range(2, 8)]])
    with ready("swin_infer", "eager") as session:
        assert session.check().startswith("logits: ")


@pytest.mark.parametrize(
    ("variant", "form", "mode"),
    [
        ("compile_graph", "none", DEFAULT),
        ("compile_tanh_graph", "tanh", DEFAULT),
        ("compile_autotune_graph", "none", AUTOTUNE),
        ("compile_tanh_autotune_graph", "tanh", AUTOTUNE),
        ("eager_tanh", "tanh", ""),
    ],
)
def test_variants_have_the_gelu_and_the_mode_that_their_names_say(variant, form, mode, ready, monkeypatch):
    """A graph is launched without one here, and what would be compiled is taken as it is."""
    modes, forms, real = [], set(), functional.gelu
    monkeypatch.setattr(swin_infer, "compiled", lambda model, mode: modes.append(mode) or model)
    monkeypatch.setattr(swin_infer, "replaying", swin_infer.launching)

    def gelu(x, approximate="none"):
        forms.add(approximate)
        return real(x, approximate=approximate)

    monkeypatch.setattr(functional, "gelu", gelu)
    monkeypatch.setattr(swin, "SwinOperators", partial(swin.SwinOperators, gelu=gelu))
    with ready("swin_infer", variant, "bfloat16"):
        assert (forms, modes) == ({form}, [mode] if mode else [])


# ---- Mistakes that a model may have.


def with_operators(model, **operators):
    for part in model.modules():
        if hasattr(part, "operators"):
            part.operators = replace(part.operators, **operators)
    return model


def without_bias(model):
    return with_operators(model, position_bias=lambda table, index: 0 * swin.position_bias(table, index))


def bias_transposed(model):
    return with_operators(model, position_bias=lambda table, index: swin.position_bias(table, index).mT)


def without_mask(model):
    return with_operators(model, window_attention=lambda qkv, bias, _: of_windows(qkv, bias, None))


def scaled(model):
    """The softmax's scale is off by a tenth."""

    def attend(qkv, bias, mask):
        factors = qkv.new_tensor([1.1, 1.0, 1.0])[:, None]
        return of_windows((qkv.unflatten(-1, (3, -1)) * factors).flatten(-2), bias, mask)

    return with_operators(model, window_attention=attend)


def shifted_by_one_more(model):
    def cut(x, window, shift):
        return swin.window_partition(x, window, shift and shift + 1)

    def join(windows, height, width, window, shift):
        return swin.window_reverse(windows, height, width, window, shift and shift + 1)

    return with_operators(model, window_partition=cut, window_reverse=join)


def not_shifted_back(model):
    return with_operators(model, window_reverse=lambda *given: swin.window_reverse(*given[:-1], 0))


def norm_without(part):
    def normalised(norm, x):
        given = {"weight": norm.weight, "bias": norm.bias} | {part: None}
        return functional.layer_norm(x, norm.normalized_shape, **given)

    return lambda model: with_operators(model, layer_norm=normalised)


def without_a_residual(model):
    block = [part for part in model.modules() if isinstance(part, SwinBlock)][-1]
    block.register_forward_hook(lambda _, given, made: made - given[0])
    return model


def without_linear_bias(name):
    def changed(model):
        for block in model.modules():
            if isinstance(block, SwinBlock):
                torch.nn.init.zeros_(dict(block.named_modules())[name].bias)
        return model

    return changed


MISTAKES = {
    "lost bias": without_bias,
    "bias transposed": bias_transposed,
    "lost mask": without_mask,
    "softmax scale": scaled,
    "wrong shift": shifted_by_one_more,
    "not shifted back": not_shifted_back,
    "norm without weight": norm_without("weight"),
    "norm without bias": norm_without("bias"),
    "lost residual": without_a_residual,
    **{f"no bias of {name}": without_linear_bias(name) for name in ("attn.qkv", "attn.proj", "mlp.0", "mlp.3")},
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_found(mistake, ready, monkeypatch):
    """In bfloat16, whose rounding hides more than float16's."""
    instead(monkeypatch, mistake)
    with ready("swin_infer", "eager", "bfloat16") as session:
        assert found(session)


# ---- Ours, whose kernels torch plays here.


def played(monkeypatch, variant, make):
    """Let `sdpa` launch what a variant of ours makes; the check takes it for that variant."""
    monkeypatch.setattr(swin_infer, "with_sdpa", make)
    monkeypatch.setattr(swin_infer, "OF_INT8", ("sdpa",) if variant.startswith("int8") else ())


OURS = {
    "fused": swin_infer.with_ours,
    "exact": lambda ctx: swin_infer.with_ours(ctx, "exact"),
    "attention": swin_infer.with_attention,
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_ours_are_right(make, dtype, ready, monkeypatch):
    played(monkeypatch, "fused", make)
    with ready("swin_infer", "sdpa", dtype) as session:
        assert session.check() is None
        assert session.warnings == []


@pytest.mark.parametrize("make", [swin_infer.with_sdpa, swin_infer.with_attention])
def test_a_compiler_takes_the_whole_model(make, ready):
    with ready("swin_infer", "sdpa", "bfloat16") as session, torch.inference_mode():
        model, images = make(session._ctx), swin_infer.make(session._ctx)["images"]
        found = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)(images)
        assert (found - model(images)).abs().max() < 0.02
    torch.compiler.reset()


def in_int8(name):
    return partial(swin_infer.with_int8, plan=PLANS[name])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", PLANS)
def test_int8_is_right_and_loses_what_int8_loses(name, dtype, ready, monkeypatch):
    played(monkeypatch, name, in_int8(name))
    with ready("swin_infer", "sdpa", dtype) as session:
        assert session.check() is None
        assert 25 < dict(session.facts)[_int8.SNR] < 45


@pytest.mark.parametrize("name", PLANS)
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


def test_int32_makes_the_parts_more_exact_that_have_it(ready, monkeypatch):
    facts = {name: figures_of(name, ready, monkeypatch) for name in PLANS}
    block, merging = ({name: found.get(key) for name, found in facts.items()} for key in (BLOCK_SNR, MERGING_SNR))
    assert block["int8_wide_second"] > block["int8_merged"]
    assert block["int8_wide_second"] == block["int8_wide"]
    assert block["int8_wide_merging"] == block["int8_merged"] == block["int8"]
    assert merging["int8_wide_merging"] > merging["int8_merged"] + 0.2
    assert merging["int8_wide_merging"] == merging["int8_wide"] < merging["int8"] - 20
    assert all(value > 25 for value in (*block.values(), *merging.values()))


def test_the_energy_of_errors_is_compared_with_another_variant_s():
    over = Subject(1.0, facts={BLOCK_SNR: 30.0})
    own = Subject(1.0, facts={BLOCK_SNR: 33.0}).against(over)
    assert metrics.METRICS["block_error"].value(own) == pytest.approx(10**-0.3)
    assert metrics.METRICS["merging_error"].value(own) is None
    assert metrics.METRICS["block_error"].value(Subject(1.0, facts={BLOCK_SNR: 33.0})) is None


def test_weights_take_a_quarter_of_the_bytes_in_int8(ready, monkeypatch):
    """But for what stays in halves: norms, biases, both ends of the model, and without a plan the products between."""
    config, found = MODELS["swin_toy"], {}
    for name in PLANS:
        found[name] = figures_of(name, ready, monkeypatch)[WEIGHTS]
    with ready("swin_infer", "float32") as session:
        assert dict(session.facts)[WEIGHTS] == 4 * config.parameters()
    monkeypatch.undo()
    with ready("swin_infer", "eager") as session:
        assert dict(session.facts)[WEIGHTS] == 2 * config.parameters()
    blocks = sum(depth * 12 * config.channels(stage) ** 2 for stage, depth in enumerate(config.depths))
    merging = sum(8 * config.channels(stage) ** 2 for stage in range(len(config.depths) - 1))
    assert found["int8"] == 2 * config.parameters() - blocks
    assert {found[name] for name in PLANS if name != "int8"} == {2 * config.parameters() - blocks - merging}


@pytest.mark.parametrize("lost", ["qkv", "proj", "first", "second"])
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


def test_the_work_reads_each_weight_once():
    work = swin_infer.OP.work_of({"B": 2, "model": "swin_tiny"}, "float16")
    config = MODELS["swin_tiny"]
    assert work.read == 2 * (config.parameters() + 2 * 3 * 224 * 224)
    assert work.written == 2 * 2 * 1000
    assert work.flops == (("float16", 2 * config.flops()),)
    assert (work.items, work.item) == (2, "images")
