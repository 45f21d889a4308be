"""Steps as users write them: what can be measured is right, and what can't be is told with what to do about it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from harness.collection.steps import ladder
from harness.collection.steps.ladder import _gradients, _learning, _optimizers, _rungs, _steps, _survey
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer, batch_of, model_of, tensors_of
from harness.devices.cpu import Cpu
from harness.errors import UsageError
from harness.model import Case
from harness.session import Session

HEAD = """
import random, sys, torch
from torch import nn
from torch.nn import functional
"""
USUAL = {
    "model": "nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))",
    "batch": "torch.randn(8, 4), torch.randint(0, 2, (8,))",
    "loss": "functional.cross_entropy(model(batch[0]), batch[1])",
}
STEP = """
def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    {}
"""


def written(folder: Path, text: str = "", **given: str) -> Path:
    """A file with such functions, of one expression each, and with more text."""
    made = {**USUAL, **given}
    if "def step" in text:
        made.pop("loss")
    arguments = {"loss": "model, *batch", "optimizer": "parameters"}
    functions = (f"def {name}({arguments.get(name, '')}): return {what}\n" for name, what in made.items() if what)
    file = folder / "users.py"
    file.write_text(f"{HEAD}{text}\n{''.join(functions)}")
    return file


def surveyed(file: Path) -> StepSheet:
    known = ladder.survey({"source": str(file), "device": "cpu", "size": 8, "prefix": "ladder_", "world": 1})
    return StepSheet(**known)


def complaints(sheet: StepSheet, rung: str, dtype: str = "bfloat16") -> list[str]:
    """What is wrong with a rung, first and after the timing."""
    op = ladder.op(**{name: getattr(sheet, name) for name in sheet.__slots__})
    case = Case(op.name, rung, dtype, (("B", sheet.size),), device="cpu")
    with Session(case, op, Cpu()) as session:
        session.prepare()
        wrong = session.check()
        call = session.rotation().calls[0]
        call()
        return [*([wrong] if wrong else []), *_steps.recheck(session._ctx, call.tensors, call)]


REFUSED = {
    "a function for a model": ({"model": "lambda x: x"}, "", "model() gives a function, not a torch.nn.Module", "give"),
    "a float": ({"loss": "3.0"}, "", "loss() gives a float, not a tensor", "without item()"),
    "a tuple": ({"loss": "(model(batch[0]).sum(), 1)"}, "", "loss() gives a tuple, not a tensor", "loss alone"),
    "many numbers": ({"loss": "model(batch[0])"}, "", "loss() gives 16 numbers, (8, 2)", "mean()"),
    "nothing": ({}, STEP.format("optimizer.step()"), "step() gives nothing, not a tensor", "give the loss"),
    "no step of the optimizer": ({}, STEP.format("return loss"), "step() makes no step of the optimizer", "its step()"),
    "no number": ({"loss": "model(batch[0]).sum().sub(1e9).log()"}, "", "the loss of step 1 is nan", "detect_anomaly"),
    "a closure": ({"optimizer": "torch.optim.LBFGS(parameters)"}, "", "'closure'", "give step(model, optimizer"),
    "sparse gradients": (
        {"model": "nn.Embedding(8, 2, sparse=True)", "batch": "torch.arange(8), torch.zeros(8, dtype=torch.long)"},
        "", "Adam does not support sparse gradients", "SparseAdam",
    ),
    "an end": ({}, "sys.exit(3)", "ends by sys.exit(3) where it is loaded", "__main__"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cant_be_measured_is_refused_with_what_to_do(tmp_path, name):
    given, text, told, advice = REFUSED[name]
    with pytest.raises(UsageError) as raised:
        surveyed(written(tmp_path, text, **given))
    assert told in raised.value.message
    assert advice in raised.value.advice


WARNED = {
    "float64": ({"model": "nn.Linear(4, 2).double()", "batch": "torch.randn(8, 4).double(), torch.arange(8) % 2"},
                "2 of 2 weights are in float64: "),
    "halves": ({"model": "nn.Linear(4, 2).bfloat16()", "batch": "torch.randn(8, 4).bfloat16(), torch.arange(8) % 2"},
               "2 of 2 weights are in bfloat16: "),
    "not in the optimizer": ({"optimizer": "torch.optim.SGD([*parameters][2:], lr=0.1)"},
                             "2 of 4 weights aren't in the optimizer, such as 0.weight: requires_grad_(False)"),
    "no gradient": ({"loss": "functional.cross_entropy(model(batch[0]).detach() * model[2].bias, batch[1])"},
                    "3 of 4 weights have no gradient in a step, such as 0.weight"),
    "shapes": ({"batch": "(lambda n: (torch.randn(8, n, 4).mean(1), torch.zeros(8).long(), torch.randn(8, n)))"
                         "(random.randint(1, 99))"},
               "batch() gives tensors of different shapes"),
}  # fmt: skip


@pytest.mark.parametrize("name", WARNED)
def test_what_a_user_may_want_to_change_first_is_told(tmp_path, name):
    given, told = WARNED[name]
    (found,) = surveyed(written(tmp_path, **given)).warnings
    assert found.startswith(told)


@pytest.mark.slow  # the test above has what a user may want to change
def test_an_ordinary_step_has_no_warning_and_a_long_one_has(tmp_path, monkeypatch):
    file = written(tmp_path)
    assert surveyed(file).warnings == ()
    monkeypatch.setattr(_survey, "_LONG", 0.0)
    assert "some fifty" in surveyed(file).warnings[0]
    answer = {name: getattr(surveyed(file), name) for name in StepSheet.__slots__}
    assert ladder.definition(answer)["shows"].endswith("or take a smaller batch first.")


OWN = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float32:
            raise TypeError("my kernel takes float32")
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2
"""


def test_a_model_that_fails_under_autocast_keeps_all_other_rungs(tmp_path, monkeypatch, capsys):
    sheet = surveyed(written(tmp_path, OWN, loss="functional.cross_entropy(Own.apply(model(batch[0])), batch[1])"))
    assert sheet.autocast == "TypeError: my kernel takes float32"
    why = _rungs.why_not(next(one for one in _rungs.of_sheet(sheet) if one.name == "amp"), sheet, "bfloat16")
    assert why == "the model fails under autocast: TypeError: my kernel takes float32"
    for rung in ("fused_optimizer", "patched"):
        assert complaints(sheet, rung) == []
    known = _rungs.of_tags(_rungs.tags(sheet), [])
    assert known == _rungs.of_sheet(sheet)
    assert {one.half for one in known if not one.name.startswith("amp")} == {""}
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "users", raising=False)
    fused = next(one for one in known if one.name == "fused_optimizer")
    exec(ladder.code(fused, "bfloat16", "users.py", sheet.gives, 8), {})
    assert len(re.findall(r"loss \d", capsys.readouterr().out)) == 10


LOADER = """
data = torch.randn(96, 4)
loaded = iter([])
def following():
    global loaded
    try:
        return next(loaded)
    except StopIteration:
        loaded = iter(torch.utils.data.DataLoader(data, 16, shuffle=True))
        return next(loaded)
"""


def test_a_loader_that_goes_on_gives_a_rung_and_its_reference_one_batch(tmp_path):
    file = written(tmp_path, LOADER, batch="following()", loss="model(batch[0]).square().mean()")
    assert complaints(surveyed(file), "amp") == []
    setup = StepSetup(str(file), 8, 5, torch.device("cpu"), "bfloat16")
    first, again = (next(tensors_of(batch_of(setup))) for _ in range(2))
    assert torch.equal(first, again)
    assert first.data_ptr() != again.data_ptr()
    assert _learning.batches(setup)[0][0] is _learning.batches(setup)[0][0]


def test_random_numbers_of_python_and_numpy_come_from_the_seed(tmp_path):
    text = "import numpy\nclass Drawn(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"
    text += "        nn.init.constant_(self.weight, random.random() + numpy.random.rand())\n"
    file = written(tmp_path, text, model="Drawn()", batch="torch.full((8, 4), random.random()), torch.zeros(8).long()")
    setups = [StepSetup(str(file), 8, seed, torch.device("cpu"), "bfloat16") for seed in (1, 2, 1)]
    weights = [float(model_of(setup).weight[0, 0]) for setup in setups]
    numbers = [float(next(tensors_of(batch_of(setup)))[0, 0]) for setup in setups]
    for one, other, again in (weights, numbers):
        assert one == again != other


def test_a_models_dict_with_a_loss_is_enough(tmp_path, monkeypatch, capsys):
    text = "class Net(nn.Linear):\n    def forward(self, x):\n        y = super().forward(x)\n"
    text += "        return {'loss': y.square().mean()}\n"
    file = written(tmp_path, text, model="Net(4, 2)", batch="{'x': torch.randn(8, 4)}", loss="")
    sheet = surveyed(file)
    assert complaints(sheet, "accumulate") == []
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "users", raising=False)
    exec(ladder.code(_rungs.FLOAT32, "bfloat16", "users.py", sheet.gives, 8), {})
    assert len(re.findall(r"loss \d", capsys.readouterr().out)) == 10


def test_a_loss_may_have_gradients_of_the_input_in_it(tmp_path):
    text = "def slope(y, x):\n    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]\n"
    own = {"model": "nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))"}
    own["loss"] = "(slope(model(batch[0]), batch[0]) - batch[0].cos()).square().mean()"
    sheet = surveyed(written(tmp_path, text, batch="torch.rand(8, 1, requires_grad=True)", **own))
    assert complaints(sheet, "float32") == []


def test_a_loss_may_have_gradients_of_a_leaf_in_it(tmp_path):
    """As a gradient penalty has, or an equation's residual. Torch's own count of operations by module fails there."""
    text = "def slope(model, x):\n    x = x.detach().requires_grad_()\n"
    text += "    return torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]\n"
    sheet = surveyed(written(tmp_path, text, loss="slope(model, batch[0]).square().mean()"))
    assert sheet.flops > 0


def test_a_batch_that_wants_gradients_gets_them(tmp_path):
    text = "def attack(model, x):\n    x.grad = None\n    model(x).sum().backward()\n    return x + x.grad.sign()\n"
    given = {"batch": "torch.ones(8, 4, requires_grad=True)", "loss": "model(attack(model, batch[0])).square().mean()"}
    assert complaints(surveyed(written(tmp_path, text, **given)), "float32") == []


def test_gradients_that_are_rounding_in_halves_are_held_to_nothing(tmp_path):
    """Batch norm takes the length of the weights before it away, so that the length's gradient is almost 0."""
    normed = "nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))"
    model = f"nn.Sequential({normed}, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))"
    sheet = surveyed(written(tmp_path, model=model))
    assert complaints(sheet, "amp") == []


def test_complex_weights_have_rungs_above_the_fused_optimizer(tmp_path):
    """Torch's fused AdamW takes none, and ours neither. Both parts of their gradients are compared."""
    text = "class Turn(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    text += "        self.w, self.norm = nn.Parameter(torch.ones(4, dtype=torch.cfloat)), nn.LayerNorm(4)\n"
    text += "    def forward(self, x): return (torch.fft.fft(self.norm(x).float()) * self.w.to(torch.cfloat)).abs()\n"
    given = {"model": "nn.Sequential(nn.Linear(4, 4), Turn())", "loss": "model(batch[0]).square().mean()"}
    file = written(tmp_path, text, **given)
    sheet = surveyed(file)
    assert (sheet.fused, sheet.foreach) == (False, True)
    assert sheet.adamw == "it has complex weights, which our AdamW doesn't take"
    assert complaints(sheet, "patched") == []
    setup = StepSetup(str(file.resolve()), 8, 1, torch.device("cpu"), "bfloat16")
    assert _gradients.kept(StepTrainer(_rungs.FLOAT32, setup))[0].tensors["1.w"].shape == (4, 2)


def test_an_optimizer_that_cant_be_fused_is_blamed(tmp_path, monkeypatch):
    def cant(optimizer, **options):
        if options.get("fused"):
            raise RuntimeError("no such weights")
        return optimizer

    sheet = surveyed(written(tmp_path))
    monkeypatch.setattr(_optimizers, "rebuilt", cant)
    with pytest.raises(
        UsageError, match=r"^torch's fused optimizer can't make the step: RuntimeError: no such weights"
    ):
        complaints(sheet, "fused_optimizer")


def test_a_scheduler_that_ends_is_told(tmp_path):
    made = "global rate\n    rate = rate or torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)\n    "
    text = "rate = None\n" + STEP.format("optimizer.step()\n    rate.step()\n    return loss")
    file = written(tmp_path, text.replace("    optimizer.zero", f"    {made}optimizer.zero"))
    with pytest.raises(UsageError, match=r"a scheduler of the rate ends, .* total_steps=10"):
        complaints(surveyed(file), "float32")


def test_weights_that_the_optimizer_doesnt_have_are_held_to_nothing(tmp_path):
    """Their gradients stay scaled in float16."""
    sheet = surveyed(written(tmp_path, optimizer="torch.optim.SGD([*parameters][2:], lr=0.1)"))
    assert complaints(sheet, "amp", "float16") == []


def test_losses_that_are_lost_later_are_told(tmp_path):
    sheet = surveyed(
        written(
            tmp_path,
            loss="(model(batch[0]) - 3).pow(4).sum().mul(1e6)",
            optimizer="torch.optim.SGD(parameters, lr=1e3)",
        )
    )
    with pytest.raises(UsageError, match=r"the loss of step \d+ is (nan|inf), in float32") as raised:
        complaints(sheet, "float32")
    assert "smaller rate" in raised.value.advice


def test_two_networks_with_one_optimizer_are_one_step(tmp_path):
    """As in a GAN: each of the optimizer's two steps has gradients of one network alone."""
    text = """
def step(model, optimizer, x, y):
    for used, other in (model, model[::-1]):
        optimizer.zero_grad()
        loss = functional.cross_entropy(used(other(x)), y) + other(x).square().mean()
        loss.backward()
        for weight in other.parameters():
            weight.grad = None
        optimizer.step()
    return loss
"""
    text = text.replace("in (model, model[::-1])", "in ((model[0], model[1]), (model[1], model[0]))")
    sheet = surveyed(written(tmp_path, text, model="nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])"))
    assert (sheet.warnings, sheet.unused) == ((), 4)
    assert complaints(sheet, "fused_optimizer") == []
