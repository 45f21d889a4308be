"""Steps with several optimizers, such as a GAN's: what rungs make of each, and the code to copy."""

from __future__ import annotations

import re
import sys

import pytest
import torch

from harness.collection import nn
from harness.collection.steps import ladder
from harness.collection.steps.ladder import _optimizers, _rungs, _steps
from harness.collection.steps.ladder._code import FileForm
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer
from harness.errors import UsageError
from tests.collection.steps.ladder.conftest import STEPS, answered
from tests.collection.steps.ladder.test_users import STEP, complaints, surveyed, written
from tests.one_test import one_test
from tests.rare import rare


def gan(rung: str) -> StepTrainer:
    """A trainer of the GAN."""
    setup = StepSetup(str(STEPS / "gan.py"), 16, 5, torch.device("cpu"), "bfloat16", called=answered("gan")["called"])
    return StepTrainer(rung_of("gan", rung), setup)


def rung_of(step: str, name: str):
    return next(one for one in _rungs.of_sheet(StepSheet(**answered(step))) if one.name == name)


# ---- Several optimizers.


@pytest.mark.parametrize("rung", ["patched", *map(rare, ("float32", "amp", "foreach_optimizer", "patched_compile"))])
def test_a_gan_with_two_optimizers_is_right(ready, rung):
    with ready("gan", rung) as session:
        assert session.check() is None
        call = session.rotation().calls[0]
        call()
        assert not list(_steps.recheck(session._ctx, call.tensors, call))


def test_rungs_change_each_of_several_optimizers():
    known = answered("gan")
    assert (known["optimizer"], known["several"], known["takes_model"]) == ("AdamW and no Adam", True, True)
    assert (known["unused"], known["warnings"]) == (0, ())
    assert "-> nn.AdamW (optimizer['generator'])" in known["patched"]
    assert "1 x Adam left: our optimizer is AdamW (optimizer['critic'])" in known["patched"]

    def settings(name):
        made = gan(name).optimizer
        return {key: (type(one), one.defaults["fused"], one.defaults["foreach"]) for key, one in made.items()}

    adamw, adam = torch.optim.AdamW, torch.optim.Adam
    assert settings("float32") == {"generator": (adamw, None, None), "critic": (adam, None, None)}
    assert settings("foreach_optimizer") == {"generator": (adamw, False, True), "critic": (adam, False, True)}
    assert settings("fused_optimizer") == {"generator": (adamw, True, False), "critic": (adam, True, False)}
    assert settings("patched") == {"generator": (nn.AdamW, None, None), "critic": (adam, True, False)}
    assert {one.defaults["capturable"] for one in gan("graph").optimizers} == {True}


def test_an_optimizer_that_makes_no_step_is_refused(tmp_path):
    text = STEP.format("optimizer[0].step(); return loss").replace("optimizer.zero_grad()", "model.zero_grad()")
    file = written(
        tmp_path, text, optimizer="[torch.optim.SGD([one], lr=0.1) for one in parameters]", model="nn.Linear(4, 2)"
    )
    with pytest.raises(UsageError, match="makes no step of optimizer 2 of 2") as raised:
        surveyed(file)
    assert "optimizer(model)" in raised.value.advice


@pytest.mark.slow  # the tests above have a GAN with two optimizers
def test_a_loss_may_have_several_optimizers(tmp_path, monkeypatch, capsys):
    """Each makes a step after the backward; in float16 each by the one scaler."""
    halves = "[torch.optim.SGD(x, lr=0.1) for x in (lambda y: (y[:2], y[2:]))([*parameters])]"
    sheet = surveyed(written(tmp_path, optimizer=halves))
    for dtype in ("bfloat16", "float16"):
        assert complaints(sheet, "fused_optimizer", dtype) == []
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "users", raising=False)
    text = ladder.code(_rungs.FLOAT32, "bfloat16", "users.py", FileForm.of_tags(_rungs.tags(sheet)), 8)
    exec(text, {})
    found = [float(one) for one in re.findall(r"loss (\S+)", capsys.readouterr().out)]
    assert found == sorted(found, reverse=True)


def test_an_optimizer_that_needs_the_model_says_so(tmp_path):
    file = written(tmp_path, optimizer="torch.optim.SGD([p for _, p in parameters.named_parameters()], lr=0.1)")
    with pytest.raises(UsageError, match="fails: AttributeError: 'list' object has no attribute 'named_par") as raised:
        surveyed(file)
    assert "call its argument `model`" in raised.value.advice
    file.write_text(file.read_text().replace("parameters)", "model)", 1).replace("parameters.named", "model.named"))
    assert surveyed(file.rename(tmp_path / "others.py")).takes_model


def test_groups_may_be_taken_from_the_weights_one_after_the_other(tmp_path, monkeypatch):
    """The second group would find nothing left of a generator."""
    groups = "torch.optim.SGD([{'params': [x for x in parameters if x.ndim == n], 'lr': 0.1} for n in (1, 2)])"
    sheet = surveyed(written(tmp_path, optimizer=groups))
    assert sheet.warnings == ()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "users", raising=False)
    known = {}
    exec(ladder.code(_rungs.FLOAT32, "bfloat16", "users.py", sheet.gives, 8), known)
    assert [len(group["params"]) for group in known["optimizer"].param_groups] == [2, 2]


def test_the_code_of_a_step_of_its_own_has_no_old_weights_in_autocast():
    kept = "torch.autocast(device.type, torch.bfloat16, cache_enabled=False)"
    for step in ("custom", "attention"):
        text = ladder.code(rung_of(step, "amp"), "bfloat16", f"{step}.py", answered(step)["gives"], 8)
        assert (kept in text) is (step == "custom")


def test_an_optimizer_goes_on_from_anothers_state_in_its_own_way():
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    fused, plain = (
        torch.optim.AdamW([one], lr=rate, fused=on)
        for one, rate, on in zip(weights, (0.1, 9), (True, None), strict=True)
    )
    for one in weights:
        one.grad = torch.ones(3)
    fused.step()
    _optimizers.go_on(plain, _optimizers.state_of(fused, torch.Tensor.detach))
    with torch.no_grad():
        weights[1].copy_(weights[0])
    assert (plain.param_groups[0]["lr"], plain.param_groups[0]["fused"]) == (0.1, None)
    for one in (fused, plain):
        one.step()
    torch.testing.assert_close(*weights)


def test_a_loss_after_an_update_is_of_an_optimizer_that_goes_on_and_of_new_weights(tmp_path):
    """Autocast would keep the weights in halves from before the update."""
    text = STEP.format("optimizer.step(); return functional.cross_entropy(model(x), y)")
    sheet = surveyed(written(tmp_path, text, optimizer="torch.optim.Adam(parameters, lr=0.3)"))
    assert complaints(sheet, "fused_optimizer") == []


# ---- The code to copy.


@pytest.mark.slow  # test_code.py has the code of rungs, test_own_steps.py a GAN
@one_test("rung", ["float32", "amp", "fused_optimizer", "patched"])
def test_the_code_of_a_gan_gives_the_losses_of_the_step(rung):
    form = FileForm.of_tags(_rungs.tags(StepSheet(**answered("gan"))))
    assert form == FileForm(("model", "batch", "step", "optimizer"), True, True, True, ("generator", "critic"))
    told: list[str] = []
    path, known = [str(STEPS), *sys.path], sys.modules.pop("gan", None)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(sys, "path", path)
        torch.manual_seed(1)
        exec(
            ladder.code(rung_of("gan", rung), "bfloat16", "gan.py", form, 16),
            {"print": lambda *said: told.append(" ".join(map(str, said)))},
        )
        wanted = plain_losses(sys.modules["gan"])
    sys.modules.pop("gan")
    if known:
        sys.modules["gan"] = known
    found = [
        [float(x) for x in re.findall(r"critic (\S+) generator (\S+)", one)[0]]
        for one in told
        if "critic" in one and "step" in one
    ]
    assert len(found) == 10
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=0.05, atol=0.02)


def plain_losses(file) -> list[list[float]]:
    """The losses of the file's step as a program of its own makes it."""
    file.average = None
    torch.manual_seed(1)
    model = file.model()
    optimizer, batch = file.optimizer(model), file.batch()
    return [[float(one) for one in file.step(model, optimizer, batch).values()] for _ in range(10)]


@one_test("name", ["graph", "compile_graph", "patched_compile_graph"])
def test_the_code_of_a_gan_for_a_gpu_is_python(name):
    form = FileForm.of_tags(_rungs.tags(StepSheet(**answered("gan"))))
    text = ladder.code(rung_of("gan", name), "bfloat16", "gan.py", form, 16)
    compile(text, "faster.py", "exec")
    assert "'capturable': True" in text
    assert ("for part in ('generator', 'critic')" in text) is ("compile" in name)
    assert ("optimizer = patched.optimizer" in text) is name.startswith("patched")
