"""The gradients of compiled rungs: honest code passes, and a wrong gradient of one weight in its backward is found.

On a CPU, Dynamo and AOTAutograd make the forward and the backward as for a GPU, and no code is written for them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from harness.collection import nn
from harness.collection.models import MODELS
from harness.collection.nn import _rows
from harness.collection.steps.training import _first_step, _trainer
from harness.collection.steps.training._ladders import rung_of
from harness.collection.steps.training._trainer import Setup, Trainer
from tests.rare import rare

pytestmark = pytest.mark.usefixtures("unmeasured_guards")
SIZE = 4
SETUP = Setup("bert_toy", SIZE, 1, torch.device("cpu"), torch.float16)
"""BERT takes the fewest seconds to compile."""
COMPILE, OURS = (rung_of("bert_train", name) for name in ("compile", "compile_ours"))


@pytest.fixture(autouse=True)
def one_layer(monkeypatch):
    """One layer shows what several would. Nothing is kept from test to test."""
    monkeypatch.setattr(_trainer, "MODELS", {"bert_toy": replace(MODELS["bert_toy"], layers=1)})
    yield
    for kept in (_first_step._of_compiled, _first_step._reference):
        kept.cache_clear()


@pytest.fixture
def backward(monkeypatch):
    """backward(change): what torch.compile makes gives change(outputs) in the backward. Gives the sizes of batches."""
    real, sizes = torch.compile, []

    def put(change=lambda made: made):
        def faulty(module, _):
            return torch._functorch.aot_autograd.make_boxed_func(lambda *given: change([*module(*given)]))

        def forward(module, given):
            sizes.append(next(len(one) for one in given if one.dtype == torch.bool))
            return torch._functorch.aot_autograd.make_boxed_func(module)

        backend = aot_autograd(fw_compiler=forward, bw_compiler=faulty)
        options = {"backend": backend, "fullgraph": True, "dynamic": False}
        monkeypatch.setattr(torch, "compile", lambda made, **_: real(made, **options))
        return sizes

    return put


def like(name):
    """The shape of a weight, which no other one has."""
    model = Trainer(replace(COMPILE, compiled=""), SETUP).model
    shape = model.get_parameter(name).shape
    assert [one.shape for one in model.parameters()].count(shape) == 1
    return shape


# The wrong gradient below is the only complaint there, and is of a batch of this size.
@pytest.mark.slow
@pytest.mark.parametrize("rung", [COMPILE, OURS], ids=lambda rung: rung.name)
def test_honest_code_passes_with_the_batch_that_is_timed(rung, backward, monkeypatch):
    monkeypatch.setattr(_first_step, "SIZE", 2)
    sizes = backward()
    assert _first_step.complaints(rung, SETUP) == ()
    assert sizes == [SIZE]


def test_a_rung_and_its_graph_are_checked_by_one_compilation(backward, monkeypatch):
    backward()
    monkeypatch.setattr(_first_step, "_complaints", lambda rung, *_: ("told",) if rung.compiled else ())
    found = [_first_step.complaints(rung, SETUP) for rung in (COMPILE, rung_of("bert_train", "compile_graph"))]
    assert found == [("compiled, told",)] * 2
    assert _first_step._of_compiled.cache_info().misses == 1


@pytest.mark.slow
def test_code_is_compiled_once(monkeypatch):
    """Also where no dropout of ours was called before, which counts its calls. Dynamo alone decides on it."""
    nn.forget()
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda made, **_: real(made, backend="eager", fullgraph=True, dynamic=False))
    trainer = Trainer(OURS, SETUP)
    trainer.loss_of_step()
    with torch.compiler.set_stance("fail_on_recompile"):
        trainer.loss_of_step()


@pytest.mark.slow  # test_first_step.py has wrong gradients, the other test here the compiled code
@pytest.mark.parametrize(
    ("rung", "wrong"),
    # What a gradient can lack besides, test_first_step.py has: it is compared in the same way whatever made the code.
    [
        rare(COMPILE, lambda grad: grad.roll(1, 0), id="rows in another order"),
        pytest.param(OURS, lambda grad: grad / 2, id="half of it by ours"),
    ],
)
def test_a_wrong_gradient_of_one_weight_is_found(rung, wrong, backward, monkeypatch):
    monkeypatch.setattr(_first_step, "SIZE", 2)
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    shape = like(name)
    sizes = backward(lambda made: [wrong(g) if g is not None and g.shape == shape else g for g in made])
    (complaint,) = _first_step.complaints(rung, SETUP)
    assert complaint.startswith("compiled, weights: ")
    assert complaint.count(".layer.") == complaint.count(name) == 1
    assert sizes == [SIZE]


@pytest.mark.slow  # the test above has a wrong gradient in compiled code alone
def test_a_wrong_gradient_of_our_operator_is_found_in_compiled_code_alone(backward, monkeypatch):
    real, complaints = _rows._layer_norm_grad_by_torch, _first_step._complaints

    def wrong(*given):
        dx, dgamma, dbeta = real(*given)
        return dx, 1.5 * dgamma, dbeta

    def told(rung, setup, wanted):
        monkeypatch.setattr(_rows, "_layer_norm_grad_by_torch", wrong if rung.compiled else real)
        return complaints(rung, setup, wanted)

    monkeypatch.setattr(_first_step, "_complaints", told)
    backward()
    (complaint,) = _first_step.complaints(OURS, SETUP)
    assert complaint.startswith("compiled, weights: the gradient in the first step is off")
    assert "LayerNorm.weight" in complaint


@pytest.mark.slow  # the complaint is tested above; test_steps.py has that a complaint makes a case wrong
def test_a_wrong_gradient_makes_the_case_wrong(ready, backward):
    backward(lambda made: [g * 2 if g is not None and g.ndim == 2 else g for g in made])
    with ready("bert_train", "compile") as session:
        assert session.check().startswith("compiled, weights: the gradient in the first step is off")
