"""The rungs of a Llama: each trains as the reference does, what is wrong in one is found. And products in float8."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

from harness.collection.models import MODELS, LlamaConfig, llama
from harness.collection.models.files import blocks_of
from harness.collection.steps.training import _first_step, _float8, _llama, _steps
from harness.collection.steps.training._llama import LLAMA
from harness.collection.steps.training._trainer import Setup, Trainer
from harness.model import Case
from harness.ops import Catalogue
from tests.one_test import one_test
from tests.rare import rare

TOY = MODELS["llama_toy"]
SETUP = Setup("llama_toy", 8, 1, torch.device("cpu"), torch.bfloat16)
RUNGS = {rung.name: rung for rung in LLAMA}
PLAIN = [rung for rung in LLAMA if not rung.compiled and not rung.graph and rung.backend != "cudnn"]


@pytest.mark.slow  # test_first_step.py has honest rungs, test_a_wrong_operator_is_found a Llama's
@one_test("rung", PLAIN, ids=lambda rung: rung.name)
def test_honest_rungs_pass(rung):
    assert _first_step.complaints(rung, SETUP) == ()


def no_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


def other_groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Neighbouring heads have the keys of different groups."""
    times = q.shape[1] // k.shape[1]
    return _llama.attention("", q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1))


def part(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """All but the last quarter of the tokens."""
    return llama.linear_cross_entropy(x[:-32], weight, labels[:-32])


@pytest.mark.parametrize(
    "wrong",
    [
        {"attention": no_mask},
        {"attention": other_groups},
        {"rope": lambda q, k, _cos, _sin: (q, k)},
        {"rope": lambda q, k, cos, sin: (llama.rope(q, q, cos, sin)[0], llama.rope(k, k, cos, -sin)[0])},
        {"swiglu": lambda gate, up: torch.nn.functional.silu(up) * gate},
        {"linear_cross_entropy": part},
    ],
    ids=["no mask", "other groups", "no turns", "one turned back", "gate for up", "tokens left out"],
)
def test_a_wrong_operator_is_found(wrong, monkeypatch):
    monkeypatch.setattr(_llama, "of_torch", lambda *_: wrong)
    assert _first_step.complaints(RUNGS["sdpa"], SETUP)


@pytest.mark.parametrize("backend", [rare(""), "flash", rare("flex")])
def test_attention_of_torch_is_that_of_the_model(backend):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 16, 8, requires_grad=backend != "flex") for heads in (4, 2, 2))
    rung = next(rung for rung in LLAMA if rung.sdpa and rung.backend == backend)
    ours = _llama.of_torch(rung, replace(MODELS["llama_toy"], tokens=16), torch.device("cpu"))["attention"](q, k, v)
    torch.testing.assert_close(ours, llama.attention(q, k, v), rtol=1e-4, atol=1e-5)


@one_test("tokens", [1, 2047, 2048, 2049, 5000])
def test_logits_in_parts_have_the_same_loss_and_gradients(tokens):
    torch.manual_seed(0)
    x, weight = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (tokens, 7))
    labels = torch.randint(7, (tokens,))
    found = [
        (loss, *torch.autograd.grad(loss, (x, weight)))
        for loss in (f(x, weight, labels) for f in (llama.linear_cross_entropy, _llama.linear_cross_entropy))
    ]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_blocks_that_keep_little_are_computed_twice(monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr(llama, "swiglu", lambda gate, up: calls.append(0) or torch.nn.functional.silu(gate) * up)
    monkeypatch.setattr(_llama, "of_torch", lambda *_: {"swiglu": llama.swiglu})
    for name, times in (("sdpa", 1), ("recompute", 2)):
        calls.clear()
        Trainer(RUNGS[name], SETUP).loss_of_step()
        assert len(calls) == times * TOY.layers


# ---- Float8.


def test_a_product_in_float8_is_off_by_its_digits():
    torch.manual_seed(0)
    x, weight = (torch.randn(rows, 64, dtype=torch.bfloat16, requires_grad=True) for rows in (32, 48))
    slope = torch.randn(2, 16, 48, dtype=torch.bfloat16)
    found = _float8.linear(_float8.float8_product(), weight, x.view(2, 16, 64))
    wanted = (x.double() @ weight.double().t()).view(2, 16, 48)
    gradients = torch.autograd.grad(found, (x, weight), slope)
    expected = torch.autograd.grad(wanted, (x, weight), slope.double())
    for one, other, most in zip((found, *gradients), (wanted, *expected), (0.05, 0.1, 0.1), strict=True):
        off = torch.linalg.vector_norm(one.double() - other.double()) / torch.linalg.vector_norm(other.double())
        assert 1e-3 < off.item() < most


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_a_scale_makes_the_largest_element_the_largest_of_the_type(size):
    x = torch.tensor([[0.5, -1.0, 0.25]]) * size
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        found, scale = _float8.quantised(x, dtype)
        assert found.float().abs().max() <= torch.finfo(dtype).max
        torch.testing.assert_close(found.float() * scale, x, rtol=0.05, atol=0.05 * max(size, _float8.TINY))
    assert _float8.quantised(torch.zeros(3), torch.float8_e4m3fn)[0].float().eq(0).all()


def test_products_of_blocks_are_in_float8_and_no_other():
    model = _float8.in_float8(llama.Llama(TOY))
    changed = {name for name, module in model.named_modules() if isinstance(getattr(module, "forward", None), partial)}
    assert len(changed) == 7 * TOY.layers
    assert all(name.startswith(tuple(blocks_of(model))) for name in changed)


@one_test("name", ["compile_half_fp8", "compile_ours_fp8"])
def test_a_model_in_bfloat16_has_right_gradients_by_products_in_float8(name):
    assert _first_step.complaints(replace(RUNGS[name], compiled=""), SETUP) == ()


@pytest.fixture
def torchao(monkeypatch):
    """torchao with linear layers that stand for its own, and the settings that they were made with."""
    settings = []

    class Converted(torch.nn.Linear):
        """Keeps the weight, as torchao's does."""

    def convert(module, *, config):
        settings.append(config)
        for one in list(module.modules()):
            for name, child in one.named_children():
                if isinstance(child, torch.nn.Linear):
                    made = Converted(1, 1, bias=False)
                    made.weight = child.weight
                    setattr(one, name, made)

    fake = {"Float8LinearConfig": lambda emulate: emulate, "convert_to_float8_training": convert}
    for name, content in {"torchao": {}, "torchao.float8": fake}.items():
        module = ModuleType(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return settings, Converted


def test_torchao_s_layers_are_in_blocks_alone_and_have_the_weights(torchao):
    settings, converted = torchao
    model = llama.Llama(TOY)
    before = list(model.parameters())
    assert _float8.by_torchao(model) is model
    changed = {name for name, module in model.named_modules() if isinstance(module, converted)}
    assert len(changed) == 7 * TOY.layers
    assert all(name.startswith(tuple(blocks_of(model))) for name in changed)
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    assert settings == [True] * TOY.layers, "a CPU has no products in float8, so torchao emulates them"
    _float8.by_torchao(llama.Llama(TOY).to("meta"))
    assert settings[TOY.layers :] == [False] * TOY.layers
    assert _first_step.complaints(replace(RUNGS["compile_torchao"], compiled=""), SETUP) == ()


def test_a_rung_by_torchao_says_how_to_install_it(monkeypatch):
    case = Case("llama_train", "compile_torchao", "bfloat16", (("B", 1),), (("model", "llama_toy"),))
    refuse = Catalogue()["llama_train"].variants["compile_torchao"].unsupported
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert refuse(case) == "torchao isn't installed: pip install 'torchao>=0.17'"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: "there")
    assert refuse(case) is None


def test_operations_of_a_float8_rung_are_those_of_its_products():
    op = Catalogue()["llama_train"]
    (float8, case) = op.variants["compile_fp8"].arithmetic({"model": "llama_1b", "B": 3}, 2)
    whole = op.work({"model": "llama_1b", "B": 3}, 2).flops
    assert (float8[0], case[0]) == ("float8", "case")
    assert float8[1] + case[1] == whole[0][1]
    assert 0.7 < float8[1] / whole[0][1] < 0.8, "the head's product is a sixth of all"


# ---- The op.


def test_our_configuration_is_llama_3_2_s():
    assert MODELS["llama_1b"] == LlamaConfig(16, 2048, 32, 8, 8192, 128256, 5e5, 2048)


@pytest.mark.slow  # test_micro_batches.py has a case of a Llama that is checked
@pytest.mark.parametrize("clip", ["none", 1.0])
def test_losses_of_a_rung_fall_as_the_reference_s(ready, clip):
    with ready("llama_train", "chunked_half", "bfloat16", clip=clip) as session:
        assert session.check() is None


def test_bfloat16_alone_is_offered():
    assert Catalogue()["llama_train"].dtypes == ("bfloat16",)
    assert not any(rung.unscale or rung.loop for rung in LLAMA)
    assert _steps.STEPS == 10


def test_torch_s_kernels_and_ours_are_both_in_float8_with_all_else_that_they_have():
    pairs = [("compile_half_fp8", "compile_half"), ("compile_ours_fp8", "compile_ours")]
    for name, below in pairs:
        assert replace(RUNGS[below], name=name, base=below, summary=RUNGS[name].summary, fp8="torch") == RUNGS[name]
        graph = RUNGS[f"{name}_graph"]
        assert replace(RUNGS[name], name=graph.name, base=name, summary=graph.summary, graph=True) == graph
    assert [RUNGS[name].role for name, _ in pairs] == ["baseline", "ours"]
