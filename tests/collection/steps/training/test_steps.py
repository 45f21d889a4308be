"""The check of training steps: what it lets pass, and what it doesn't. And what steps leave behind, and report."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from harness import metrics
from harness.collection.models import MODELS
from harness.collection.steps.training import _facts, _figures, _first_step, _steps
from harness.collection.steps.training._resnet import RESNET
from harness.collection.steps.training._rungs import FLOAT32
from harness.collection.steps.training._swin import SWIN
from harness.collection.steps.training._trainer import Trainer
from harness.devices.cpu import Cpu
from harness.measure import measure
from harness.metrics import Subject
from harness.model import Case, ComputePoint, Job, Limits, Measurement, Timing
from harness.ops import known_cases
from tests.rare import rare


def forward_only(trainer: Trainer) -> torch.Tensor:
    return trainer.loss(trainer.called, trainer.batch).detach()


def nothing(_: Trainer) -> torch.Tensor:
    return torch.zeros(())


def not_finite(_: Trainer) -> torch.Tensor:
    return torch.tensor(math.nan)


@pytest.fixture
def losses_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is checked."""
    monkeypatch.setattr(_first_step, "complaints", lambda *_: ())
    monkeypatch.setattr(_first_step, "untrained", lambda *_: ())


@pytest.mark.parametrize("step", [rare(nothing), forward_only, rare(not_finite)])
def test_a_step_that_trains_nothing_is_wrong(ready, step, losses_alone, monkeypatch):
    with ready("bert_train", "float32") as session:  # whose reference is kept
        assert session.check() is None
    monkeypatch.setattr(Trainer, "loss_of_step", step)
    with ready("bert_train", "amp") as session:
        assert session.check().startswith("losses: the loss of step")


@pytest.mark.slow  # test_first_step.py has weights that are frozen
@pytest.mark.parametrize("has_twin", [rare(True), False])  # test_first_step.py has twins
def test_attention_that_is_not_trained_is_wrong(ready, has_twin, monkeypatch):
    """By the twin's gradients, and by the state of the trainer that is timed; its losses don't show it."""
    real = Trainer.__init__

    def frozen(trainer, *arguments):
        real(trainer, *arguments)
        if trainer.rung.name == "amp":
            for name, weight in trainer.model.named_parameters():
                weight.requires_grad_("query.weight" not in name)

    monkeypatch.setattr(Trainer, "__init__", frozen)
    if not has_twin:
        monkeypatch.setattr(_first_step, "complaints", lambda *_: ())
    with ready("bert_train", "amp") as session:
        assert session.check().startswith("weights: 2 of 46 had no gradient: bert.encoder.layer.0.attention.self.query")


def test_the_call_that_the_harness_checks_is_one_of_the_steps(ready, monkeypatch):
    real, made = Trainer.loss_of_step, Counter()

    def last_is_no_number(trainer):
        made[trainer] += 1
        return not_finite(trainer) if made[trainer] == _steps.STEPS and trainer.rung.name == "amp" else real(trainer)

    monkeypatch.setattr(Trainer, "loss_of_step", last_is_no_number)
    with ready("bert_train", "amp") as session:
        assert session.check().startswith(f"losses: the loss of step {_steps.STEPS} is off")
    assert max(made.values()) == _steps.STEPS


RISES_FIRST = (4.0, 5.0, 6.0, 4.5, 3.9, 3.5, 3.2, 3.0, 2.9, 2.8)


@pytest.mark.parametrize(
    ("losses", "wrong"),
    [
        (RISES_FIRST, None),
        ((4.0, 5.9, 4.6, 4.1, 3.7, 3.4, 3.1, 2.9, 2.8, 2.8), None),  # it rises and falls a step early
        ((4.0, 5.0, 7.5, 4.5, 3.9, 3.5, 3.2, 3.0, 2.9, 2.8), "the loss of step 3 is off by 125%"),
        ((4.0, 5.0, 3.5, 4.5, 3.9, 3.5, 3.2, 3.0, 2.9, 2.8), "the loss of step 3 is off by 83%"),
        ((4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0), "the loss of step 8 is off by 67%"),
        ((4.0, 5.0, 6.0, 4.5, 3.9, 3.5, 3.2, 3.0, 2.9, math.nan), "the loss of step 10 is off by nan%"),
    ],
)
def test_a_loss_may_be_a_neighbours_but_not_another_one(losses, wrong, monkeypatch):
    monkeypatch.setattr(_steps, "reference_losses", lambda _: RISES_FIRST)
    told = {}
    ctx = SimpleNamespace(report=told.__setitem__)
    found = list(_steps._of_losses(ctx, SimpleNamespace(losses=torch.tensor(losses))))
    assert found[0].partition(": ")[2].startswith(wrong) if wrong else not found, found
    if all(map(math.isfinite, losses)):
        farthest = max(abs(one - other) for one, other in zip(losses, RISES_FIRST, strict=True))
        assert told[_facts.OFF] == pytest.approx(farthest / 1.2, abs=1e-6)


def test_losses_that_do_not_fall_judge_nothing(ready, monkeypatch):
    monkeypatch.setattr(_steps, "_reference_losses", lambda _: (2.0,) * _steps.STEPS)
    with ready("bert_train", "float32") as session:
        assert session.check().startswith("the reference's losses don't fall")


def test_all_rungs_of_a_case_begin_with_the_same_model_and_data(training, setup):
    losses = {}
    for rung in RESNET if training == "resnet50_train" else SWIN:
        if rung.role == "baseline" and not rung.graph and not rung.compiled:
            losses[rung.name] = Trainer(rung, setup).loss_of_step().item()
    assert len(losses) > 4
    assert all(loss == pytest.approx(losses["float32"], rel=2e-2) for loss in losses.values())


def test_settings_of_the_process_are_as_before_when_a_case_is_over(ready):
    def settings():
        cudnn = torch.backends.cudnn
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark

    before = settings()
    with ready("bert_train", "tf32"):
        assert settings() == ("high", True, True)
    assert settings() == before
    with ready("bert_train", "float32"):
        assert settings() == ("highest", False, True)
    assert settings() == before


def test_facts_on_a_cpu_are_the_distance_of_losses_and_tokens_and_calls_rotate_over_nothing(ready):
    """A block of calls has whole rotations, which would be a thousand steps."""
    with ready("bert_train", "amp") as session:
        assert session.check() is None
        assert len(session.calls()) == 1
    facts = dict(session.facts)
    assert facts.keys() == {_figures.TOKENS, _facts.OFF}
    assert facts[_figures.TOKENS] == 4 * MODELS["bert_toy"].tokens
    assert 0 < facts[_facts.OFF] < 0.1


@pytest.fixture
def reported(short_timing: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The items of each report of steps after the timed ones, which measures energy."""
    items: list[int] = []
    monkeypatch.setattr(_facts, "report_steps", lambda _ctx, _step, count: items.append(count))
    return items


def measured(catalogue):
    case = Case("bert_train", "amp", "float16", (("B", 8),), (("model", "bert_toy"),), device="cpu")
    case = known_cases.recognised(case, catalogue)
    return measure(Job(case, Timing(precision=0.5, max_time=0.02)), catalogue["bert_train"], Cpu()).status


@pytest.mark.slow  # test_swin_infer.py has when energy is measured
def test_energy_is_measured_after_the_timing(catalogue, reported):
    assert measured(catalogue) == "ok"
    assert reported == [8]


@pytest.mark.slow  # test_swin_infer.py has when energy is measured
def test_energy_is_not_measured_of_steps_that_are_wrong_or_not_timed(catalogue, ready, reported, monkeypatch):
    with ready("bert_train", "amp") as session:
        assert session.check() is None
        session.calls()[0]()
    monkeypatch.setattr(_first_step, "complaints", lambda *_: ("all is wrong",))
    assert measured(catalogue) == "wrong"
    assert not reported


@pytest.mark.slow  # test_swin_infer.py has when energy is measured
def test_energy_is_not_measured_after_an_error(catalogue, reported, monkeypatch):
    real, made = Trainer.loss_of_step, Counter()

    def no_memory_is_left(trainer):
        made[trainer] += 1
        if made[trainer] > _steps.STEPS:
            raise torch.OutOfMemoryError
        return real(trainer)

    monkeypatch.setattr(Trainer, "loss_of_step", no_memory_is_left)
    assert measured(catalogue) == "out_of_memory"
    assert not reported


def test_what_kernels_cover_counts_once():
    assert _facts.covered([(5, 7), (0, 2), (1, 3), (1, 2), (6, 6.5)]) == 5
    assert _facts.covered([]) == 0


def test_the_reference_keeps_what_enters_a_block_and_computes_the_same(setup):
    setup = replace(setup, dtype=torch.float64)
    losses, kept = [], []
    for change in (lambda _: None, _steps.keep_little):
        trainer = Trainer(FLOAT32, setup)
        change(trainer.model)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one, to=sizes: (to.append(one.numel()), one)[1], _same):
            losses.append([trainer.loss_of_step().item() for _ in range(2)])
        kept.append(sum(sizes))
    assert losses[0] == losses[1]
    assert kept[1] < kept[0] / 2


def _same(tensor):
    return tensor


def test_rates_and_shares_follow_from_the_declared_work(catalogue):
    case = Case("bert_train", "amp", "float16", (("B", 32),), (("model", "bert_base"),))
    work = catalogue["bert_train"].work_of(case.values, case.dtype)
    forward = MODELS["bert_base"].flops()
    assert work.flops == (("float16", 3 * 32 * forward),)
    assert (work.items, work.item, work.moved) == (32, "sequences", 0)
    peak = ComputePoint("float16", 8, 8, 8, 6e14, "torch.mm", "settled")
    found = Measurement(case, "ok", (0.1,) * 7, timer="steady", work=work, facts=((_figures.TOKENS, 32.0 * 128),))
    values = metrics.values(Subject.of(found, Limits(compute=(peak,))))
    assert values["items"] == pytest.approx(320)
    assert values["tokens"] == pytest.approx(40960)
    assert values["flops"] == pytest.approx(3 * 320 * forward)
    assert values["of_ceiling"] == pytest.approx(3 * 320 * forward / 6e14)
    assert metrics.METRICS["tokens"].written(40960.0) == "40960/s"
    assert metrics.METRICS["tokens"].unit.column([40960.0], "sequences")[0] == "k tokens/s"


@pytest.mark.slow  # test_ours.py has the losses of a compiled rung, test_compiled_gradients.py its check
@pytest.mark.parametrize("name", ["bert_train"])  # which takes the fewest seconds; a GPU compiles all
def test_the_compiled_model_makes_the_same_losses(name, ready, monkeypatch):
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: real(model, backend="eager", **_known(options)))
    with ready(name, "compile") as session:
        assert session.check() is None


def _known(options):
    return {name: value for name, value in options.items() if name != "mode"}


@pytest.mark.parametrize("overflows", [rare(0), 3])
def test_steps_that_were_skipped_after_the_check_are_told(ready, overflows):
    with ready("bert_train", "fused_optimizer") as session:
        assert session.check() is None
        trainer = session._prepared.first.steps.trainer
        assert trainer.scaler.get_growth_interval() > 10**9
        usual = trainer.loss
        trainer.loss = lambda model, batch: usual(model, batch) * math.inf
        for _ in range(overflows):
            trainer.loss_of_step()
        session.report()
    assert dict(session.facts).get(_facts.SKIPPED, 0) == overflows


def test_a_scale_that_is_gone_is_of_many_steps():
    found = {}
    ctx = SimpleNamespace(report=found.__setitem__)
    _facts.report_skipped(ctx, 1024.0, 0.0)
    assert found == {_facts.SKIPPED: 159}
