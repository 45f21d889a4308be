"""The check of inference: honest logits pass in both halves, and whatever an operator loses is found."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional

from harness.collection.models import MODELS, swin
from harness.collection.models.swin import SwinBlock
from harness.collection.ops.gemm import _int8
from harness.collection.steps.training import _facts, _inference, _swin_prepared, swin_infer
from harness.collection.steps.training._rungs import AUTOTUNE, DEFAULT
from harness.collection.steps.training._swin import of_windows
from tests.rare import rare


@pytest.fixture(autouse=True)
def one_warm_call(monkeypatch):
    """A CPU's libraries choose no kernels in the others."""
    monkeypatch.setattr(_inference, "WARM", 1)


@pytest.mark.slow  # test_ours_are_right has a variant in halves
@pytest.mark.parametrize(
    ("variant", "dtype"),
    [rare("float32", "float16"), rare("eager", "bfloat16"), rare("eager_tanh", "float16"), ("sdpa", "bfloat16")],
)
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


def test_a_bias_that_is_added_apart_gives_the_same_logits(ready, monkeypatch):
    added = []
    adding = _swin_prepared._add
    monkeypatch.setattr(_swin_prepared, "_add", lambda *given: added.append(given) or adding(*given))
    instead(monkeypatch, swin_infer.bias_apart)
    with ready("swin_infer", "eager") as session:
        assert session.check() is None
        assert session.warnings == []
        assert len(added) % len(MODELS["swin_toy"].depths) == 0 < len(added)


@pytest.mark.slow  # test_a_mistake_is_found has biases that are lost
def test_a_bias_that_is_not_added_is_noticed(ready, monkeypatch):
    monkeypatch.setattr(_swin_prepared, "_add", lambda bias, module, inputs, made: made)
    instead(monkeypatch, swin_infer.bias_apart)
    with ready("swin_infer", "eager") as session:
        assert found(session)


@pytest.mark.parametrize("factor", [rare(0.0), rare(-1.0), rare(2.0), 0.98])
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


@pytest.mark.slow  # the tests above have other logits and none
def test_a_difference_of_one_image_is_wrong(ready, monkeypatch):
    instead(monkeypatch, lambda model: lambda images: model(images)[[1, 0, *range(2, 8)]])
    with ready("swin_infer", "eager") as session:
        assert session.check().startswith("logits: ")


@pytest.mark.parametrize(
    ("variant", "form", "mode"),
    [
        rare("compile_graph", "none", DEFAULT),
        ("compile_tanh_graph", "tanh", DEFAULT),
        ("compile_autotune_graph", "none", AUTOTUNE),
        rare("autotune_tanh_graph", "tanh", AUTOTUNE),
        rare("eager_tanh", "tanh", ""),
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


USUAL = {"lost mask", "no bias of attn.qkv"}


@pytest.mark.parametrize(
    "mistake", [(pytest.param if name in USUAL else rare)(made, id=name) for name, made in MISTAKES.items()]
)
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


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (pytest.param if name == "attention" else rare)(make, dtype, id=name)
        for (name, make), dtype in zip(OURS.items(), ("float16", "bfloat16", "float16"), strict=True)
    ],
)
def test_ours_are_right(make, dtype, ready, monkeypatch):
    played(monkeypatch, "fused", make)
    with ready("swin_infer", "sdpa", dtype) as session:
        assert session.check() is None
        assert session.warnings == []


@pytest.mark.slow  # nn/test_operators.py has our operators in compiled code
@pytest.mark.parametrize("make", [swin_infer.with_sdpa, swin_infer.with_attention])
def test_a_compiler_takes_the_whole_model(make, ready):
    with ready("swin_infer", "sdpa", "bfloat16") as session, torch.inference_mode():
        model, images = make(session._ctx), swin_infer.make(session._ctx)["images"]
        found = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)(images)
        assert (found - model(images)).abs().max() < 0.02
    torch.compiler.reset()


def test_the_work_reads_each_weight_once():
    work = swin_infer.OP.work_of({"B": 2, "model": "swin_tiny"}, "float16")
    config = MODELS["swin_tiny"]
    assert work.read == 2 * (config.parameters() + 2 * 3 * 224 * 224)
    assert work.written == 2 * 2 * 1000
    assert work.flops == (("float16", 2 * config.flops()),)
    assert (work.items, work.item) == (2, "images")
