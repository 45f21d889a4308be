"""Whole steps as files have them: losses by name, variables of a file, chance, parts of a model called."""

from __future__ import annotations

import copy
import random
import re
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.collection.steps import ladder
from harness.collection.steps.ladder import _file_state, _reference, _rungs, _steps, _survey
from harness.collection.steps.ladder._compiled import begin_compiling, compile_in_place, left_out
from harness.collection.steps.ladder._given import given
from harness.collection.steps.ladder._gradients import ComparedGradients
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer
from harness.errors import UsageError
from harness.model import Case
from tests.collection.steps.ladder.conftest import STEPS, answered
from tests.collection.steps.ladder.test_users import HEAD, STEP, complaints, surveyed, written

# ---- Losses by name.


def test_losses_are_compared_by_name(ready):
    with ready("gan", "float32") as session:
        assert session.check() is None
        call = session.rotation().calls[0]
        call()
        call()
        steps = call.tensors.steps
        assert {name: len(found) for name, found in steps.named.items()} == {"critic": 10, "generator": 10}
        for one, shift in (("critic", 0.5), ("generator", -0.5)):
            steps.named[one][3] += shift  # their sum stays
        wrong = [text for text in _steps.check(session._ctx, call.tensors) if "loss '" in text]
        assert [text.partition(" is ")[0] for text in wrong] == [
            f"losses: the loss {name!r} of step 4" for name in ("critic", "generator")
        ]
        steps.named.pop("critic")
        assert any(
            "0 of the first 10 steps have a loss 'critic'" in text for text in _steps.check(session._ctx, call.tensors)
        )


NAMED = {
    "{'loss': 2 * model(batch[0]).sum(), 'part': model(batch[0]).sum(), 'share': torch.ones(())}": {"part"},
    "{'loss': model(batch[0]).sum(), 'logits': model(batch[0])}": set(),
}


@pytest.mark.parametrize(("loss", "names"), NAMED.items())
def test_of_a_dict_the_loss_is_trained_and_figures_are_left_out(tmp_path, loss, names):
    sheet = surveyed(written(tmp_path, loss=loss))
    assert sheet.named
    assert _reference.reference_losses.__wrapped__(setup_of(sheet)).keys() == {"", *names}
    assert complaints(sheet, "float32") == []


def setup_of(sheet: StepSheet) -> StepSetup:
    return StepSetup(sheet.source, sheet.size, 5, torch.device("cpu"), "bfloat16", called=sheet.called)


DICTS = {
    "loss": ({"loss": "{'a': model(batch[0]).sum()}"}, "", "a dict without a tensor 'loss': it has a", "add 'loss'"),
    "step": ({}, STEP.format("optimizer.step(); return {'a': loss.item()}"), "it has a", "without item()"),
}


@pytest.mark.parametrize("name", DICTS)
def test_a_dict_without_a_loss_is_refused(tmp_path, name):
    given, text, told, advice = DICTS[name]
    with pytest.raises(UsageError) as raised:
        surveyed(written(tmp_path, text, **given))
    assert told in raised.value.message
    assert advice in raised.value.advice


def test_the_pages_gan_is_a_step(tmp_path):
    page = (Path(__file__).parents[4] / "docs" / "make_my_model_faster.md").read_text()
    (block,) = (one for one in re.findall(r"`{3}python\n(.*?)`{3}", page, re.DOTALL) if "Critic()" in one)
    networks = "def Generator(): return nn.Linear(128, 6)\ndef Critic(): return nn.Linear(6, 1)\n"
    file = tmp_path / "page.py"
    file.write_text(f"{HEAD}{networks}{block}\n\ndef batch(): return torch.randn(8, 6)\n")
    sheet = surveyed(file)
    assert (sheet.optimizer, sheet.several, sheet.called) == ("AdamW", True, ("generator", "critic"))
    assert complaints(sheet, "patched") == []


# ---- What a file keeps in global variables.


def test_each_training_has_a_files_global_variables_for_itself(tmp_path):
    """Averages of weights, as of a reference in float64 and of a rung in float32, don't meet."""
    text = """
average, counts = None, []
def step(model, optimizer, x, y):
    global average
    counts.append(1)
    if average is None:
        average = model.weight.detach().clone()
    average.lerp_(model.weight.detach(), 0.5)
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(x), y) + len(counts)
    loss.backward()
    optimizer.step()
    return loss
"""
    sheet = surveyed(written(tmp_path, text, model="nn.Linear(4, 2)"))
    one, other = (StepTrainer(_rungs.FLOAT32, setup_of(sheet)) for _ in range(2))
    losses = [float(trainer.loss_of_step()) for trainer in (one, other, one, other, one)]
    assert losses[0] == losses[1] < losses[2] == losses[3] < losses[4]
    assert complaints(sheet, "fused_optimizer") == []


def test_an_object_of_a_files_class_is_each_trainings_own(tmp_path):
    """Such as an average of weights, which would be in float64 of the reference and in float32 of a rung."""
    text = """
class Average:
    def __init__(self):
        self.shadow = {}
    def update(self, model):
        for name, one in model.named_parameters():
            self.shadow.setdefault(name, one.detach().clone()).lerp_(one.detach(), 0.5)
average = Average()
"""
    text += STEP.format("optimizer.step(); average.update(model); return loss")
    sheet = surveyed(written(tmp_path, text))
    given.cache_clear()  # rungs are measured in another process
    assert complaints(sheet, "fused_optimizer") == []


def test_a_model_that_all_calls_give_is_refused(tmp_path):
    text = "net = nn.Linear(4, 2)"
    for model in ("net", "nn.Sequential(net, nn.Linear(2, 2))"):
        with pytest.raises(UsageError, match=r"gives the same weights in each call, such as (0\.)?weight") as raised:
            surveyed(written(tmp_path, text, model=model))
        assert "copy.deepcopy()" in raised.value.advice
        (tmp_path / "users.py").rename(tmp_path / "done.py")
        given.cache_clear()
    assert surveyed(written(tmp_path, f"import copy\n{text}", model="copy.deepcopy(net)")).warnings == ()


def test_a_rate_that_warms_up_from_zero_is_refused(tmp_path):
    text = "def warming(optimizer):\n    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 9)\n"
    text += "    return optimizer\n"
    with pytest.raises(UsageError, match="all rates of the optimizer are 0") as raised:
        surveyed(written(tmp_path, text, optimizer="warming(torch.optim.SGD(parameters, lr=1.0))"))
    assert "warms up from 0" in raised.value.advice


def test_a_files_variables_are_swapped_but_torch_compiles():
    data, variables = [*range(9999)], {"count": 1, "known": {}, "__compiled_fn_1": 1}
    variables |= {"again": variables["known"], "data": data}
    state = _file_state.FileState(variables)
    first, second = state.fresh(), state.fresh()
    state.enter(first)
    variables |= {"count": 2, "new": 3, "__compiled_fn_2": 2}
    variables["known"]["key"] = 1
    state.enter(second)
    assert "new" not in variables
    assert (variables["count"], variables["known"], variables["__compiled_fn_2"]) == (1, {}, 2)
    assert variables["known"] is variables["again"]
    assert variables["data"] is data
    state.enter(first)
    assert (variables["count"], variables["known"], variables["new"]) == (2, {"key": 1}, 3)
    state.enter(state.shared)
    assert (variables["count"], variables["known"]) == (1, {})


# ---- What can't be in a graph, what is compiled, and what several devices train.


def why(sheet, rung, device="cuda", world=1):
    op = ladder.op(**{**{name: getattr(sheet, name) for name in sheet.__slots__}, "world": world})
    return op.variants[rung].unsupported(
        Case(op.name, rung, "bfloat16", (("B", sheet.size),), world=world, device=device)
    )


BY_HOST = {
    "a rate": (STEP.format("optimizer.step(); optimizer.param_groups[0]['lr'] *= 0.9; return loss"),
               "step() changes lr of the optimizer"),
    "a scheduler": (
        "def scheduled(optimizer):\n"
        "    if not hasattr(optimizer, 'scheduler'):\n"
        "        optimizer.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)\n"
        "    return optimizer.scheduler\n"
        + STEP.format("optimizer.step(); scheduled(optimizer).step(); return loss"),
        "the optimizer has a scheduler of the rate",
    ),
    "a count": ("known = {'steps': 0}" + STEP.format("optimizer.step(); known['steps'] += 1; return loss"),
                "the file's variable known['steps']"),
    "Python": (STEP.format("optimizer.step(); return loss if random.random() < 2 else 0"),
               "random numbers of Python's random"),
    "numpy": ("import numpy" + STEP.format("optimizer.step(); return loss * (numpy.random.rand() < 2)"),
              "random numbers of numpy"),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HOST)
def test_what_the_host_decides_in_each_step_isnt_frozen_in_a_graph(tmp_path, name):
    text, told = BY_HOST[name]
    sheet = surveyed(written(tmp_path, text))
    assert why(sheet, "graph").startswith(f"a CUDA graph would repeat what the host decides anew in each step: {told}")
    assert why(sheet, "graph").endswith("; a tensor on the device, which the step changes in place, is followed")
    assert why(sheet, "compile") is None


def test_a_rate_that_is_a_tensor_is_followed_by_a_graph(tmp_path):
    text = BY_HOST["a scheduler"][0].replace("StepLR(optimizer, 30)", "ExponentialLR(optimizer, 0.9)")
    rate = "torch.optim.AdamW(parameters, lr=torch.tensor(1e-3))"
    assert surveyed(written(tmp_path, text, optimizer=rate)).by_host == ""


def test_torchs_numbers_are_the_hosts_where_the_device_is_another_one():
    cuda, cpu = (SimpleNamespace(setup=SimpleNamespace(device=torch.device(name))) for name in ("cuda", "cpu"))
    before = _survey._drawn(cuda)
    torch.rand(())
    after = _survey._drawn(cuda)
    assert [name for name in after if after[name] != before[name]] == ["torch on the CPU"]
    assert "torch on the CPU" not in _survey._drawn(cpu)
    random.random()
    assert _survey._drawn(cpu)["Python's random"] != after["Python's random"]


def test_the_parts_that_a_step_calls_are_compiled_each(monkeypatch):
    """They are Sequentials, which module.compile() would leave out. A copy of a part isn't compiled."""
    real, graphs = torch.compile, []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **_: real(function, dynamic=False, backend=backend))
    assert answered("gan")["called"] == ("generator", "critic")
    assert answered("attention")["called"] == ("",)
    (compiled,) = (one for one in _rungs.of_sheet(StepSheet(**answered("gan"))) if one.name == "compile")
    trainer = StepTrainer(compiled, setup_of(StepSheet(**answered("gan"))))
    assert trainer.called is trainer.model
    found = [name for name, one in trainer.model.named_modules() if one._compiled_call_impl is not None]
    assert found == ["generator", "critic"]
    with closing(SimpleNamespace(close=torch.compiler.reset)):
        for name, width in (("generator", 8), ("critic", 16)):
            part, x = trainer.model[name], torch.randn(3, width)
            graphs.clear()
            y = part(x)
            assert len(graphs) == 1
            assert torch.equal(copy.deepcopy(part)(x), y)
            assert len(graphs) == 1


def test_as_many_parts_are_compiled_as_there_are():
    """Torch gives up on a code object that it compiled eight times."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    parts = [torch.nn.Linear(2, width) for width in range(2, 14)]
    with closing(SimpleNamespace(close=torch.compiler.reset)):
        begin_compiling()
        for part in parts:
            compile_in_place(part, backend=backend, dynamic=False)
            part(torch.randn(3, 2))
        assert len(graphs) == len(parts)
        assert not left_out()
        shared = torch.compile(lambda part, x: part(x), backend=backend, dynamic=False)
        for part in parts:
            shared(part, torch.randn(3, 2))
        assert "recompile limit" in left_out()


def test_a_step_that_calls_no_module_has_nothing_to_compile(tmp_path):
    sheet = surveyed(written(tmp_path, loss="(batch[0] @ model[0].weight.T).square().mean()"))
    assert why(sheet, "compile") == "the step calls no module that could be compiled"


def test_parts_of_a_model_arent_trained_on_several_devices():
    request = {"source": str(STEPS / "gan.py"), "device": "cpu", "size": 4, "prefix": "ladder_", "world": 2}
    with pytest.raises(UsageError, match="the step calls generator, critic of the model, and not the model") as raised:
        ladder.survey(request)
    assert "leave --world out" in raised.value.advice


def test_a_step_of_its_own_waits_for_no_second_stream():
    assert why(StepSheet(**answered("gan")), "streams") == "the file's own step doesn't wait for a second stream"


# ---- Chance, scales and halves of a file's own.


def test_gradients_that_chance_decides_are_compared_together():
    """One weight's may be off by more than its length; all of them together not."""
    calm = StepSetup(str(STEPS / "gan.py"), 16, 5, torch.device("cpu"), "bfloat16", calm=True)
    wanted = _reference._reference_gradients(calm)
    assert wanted.by_chance == {name for name in wanted.names if wanted.spread[name] > 0.2}
    assert 0 < wanted.apart < 2
    many = {name: 9 * square for name, square in wanted.kept.squares.items()}  # of gradients four times as large
    (told,) = _reference._of_chance(ComparedGradients(many, wanted.names), wanted)
    assert told.startswith(
        f"weights: the gradients of {len(wanted.by_chance)} weights, which depend on the step's random"
    )
    few = {name: many[name] if one.numel() == 1 else 0.0 for name, one in wanted.kept.tensors.items()}
    assert not [*_reference._of_chance(ComparedGradients(few, wanted.names), wanted)]


@pytest.mark.slow  # the test above has gradients that chance decides
def test_noise_of_a_step_may_lie_otherwise_in_memory(tmp_path):
    """With channels last, numbers of the same seed fall on other places."""
    net = "nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))"
    loss = "(lambda x, noise: functional.mse_loss(model(x + 4 * noise), noise))(batch[0], torch.randn_like(batch[0]))"
    sheet = surveyed(written(tmp_path, model=net, batch="(torch.rand(4, 3, 8, 8),)", loss=loss))
    assert complaints(sheet, "channels_last") == []


def test_gradients_that_a_files_own_scaler_has_scaled_are_compared_unscaled(tmp_path):
    text = "scaler = torch.amp.GradScaler('cpu', init_scale=64.0)"
    text += STEP.format("scaler.step(optimizer); scaler.update(); return loss").replace(
        "loss.b", "scaler.scale(loss).b"
    )
    assert complaints(surveyed(written(tmp_path, text)), "fused_optimizer") == []


def test_a_file_that_enters_autocast_itself_is_told(tmp_path):
    text = STEP.format("optimizer.step()\n    return loss").replace(
        "loss = ", "with torch.autocast('cpu', torch.bfloat16): loss = "
    )
    (found,) = surveyed(written(tmp_path, text)).warnings
    assert found.startswith("the file enters autocast itself")


def test_parts_that_dont_fit_each_other_are_told(tmp_path):
    net = "nn.Linear(4, 4)"
    sheet = surveyed(written(tmp_path, model=net, batch="torch.randn(8, 4), torch.tensor([7])",
                             loss="model(batch[0])[batch[1]].square().mean()"))  # fmt: skip
    with pytest.raises(UsageError, match="the batch can't be trained in 2 parts: IndexError"):
        complaints(sheet, "accumulate")
