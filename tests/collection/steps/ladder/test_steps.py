"""Users' steps as ops on the CPU: honest rungs pass, each failure costs its own rung, and what is wrong is found."""

from __future__ import annotations

import pytest
import torch

from harness.collection.steps.ladder import _gradients, _reference, _rungs, _steps, _survey, _trainer
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer
from harness.errors import UsageError
from harness.model import Case
from tests.collection.steps.ladder.conftest import STEPS, answered, op_of
from tests.one_test import one_test
from tests.rare import rare

HONEST = [
    ("custom", "amp"),
    *(rare(*given) for given in (("convolutions", "channels_last"), ("attention", "accumulate"))),
    rare("attention", "patched_compile"),
    *(rare("convolutions", rung) for rung in ("float32", "amp_other_half", "checkpoint", "patched")),
    *(rare("attention", rung) for rung in ("foreach_optimizer", "fused_optimizer")),
    *(rare("custom", rung) for rung in ("float32", "patched")),
    rare("uncompilable", "patched"),
]


@pytest.mark.parametrize(("step", "rung"), HONEST)
def test_honest_rungs_pass(ready, step, rung):
    with ready(step, rung) as session:
        assert session.check() is None
        calls = session.rotation().calls
        calls[0]()
        steps = calls[0].tensors.steps
        assert not list(_steps.recheck(session._ctx, calls[0].tensors, calls[0]))
        assert steps.made > 10


@pytest.mark.slow  # test_code.py has code in float16 that scales the loss
def test_float16_has_a_scaled_loss(ready):
    with ready("attention", "fused_optimizer", "float16") as session:
        assert session.check() is None


def test_the_survey_tells_what_rungs_need():
    found = answered("convolutions")
    assert (found["size"], found["convolutions"], found["batch_norm"], found["attention"]) == (8, True, True, False)
    assert (found["optimizer"], found["adamw"], found["blocks"]) == ("SGD", "our optimizer is AdamW", True)
    # Forward, and both gradients but for the images': 2 operations for each of 36 pixels and 3 * 3 weights a channel.
    first, others = 2 * 8 * 36 * 9 * 3 * 8, 4 * 2 * 8 * 36 * 9 * 8 * 8
    last = 2 * 8 * 288 * 4
    assert found["flops"] == 2 * first + 3 * (others + last)
    assert answered("attention")["attention"]
    assert answered("custom")["gives"] == ("model", "batch", "step")


@one_test(
    ("source", "name"),
    [
        ("/home/a:b/Train Step.py", "train_step"),
        ("/x/ladder_mine.py", "mine"),
        ("timm:vit_base_patch16", "vit_base_patch16"),
        ("transformers:org/Name-7B", "name_7b"),
    ],
)
def test_an_op_is_named_after_its_source(source, name):
    assert _survey.name_of(source) == name


def test_a_cpu_says_why_rungs_are_for_gpus():
    op = op_of("attention")

    def why(rung):
        return op.variants[rung].unsupported(Case(op.name, rung, "bfloat16", (("B", 8),), device="cpu"))

    assert why("tf32") == "a CPU has no TF32"
    assert why("compile_graph") == why("patched_graph") == "a CPU has no CUDA graphs"
    assert why("compile_autotune") == "a CPU has nothing to tune"
    assert why("sdpa_flash") == "a CPU has one kernel of attention alone"
    assert why("patched_streams") == "a CPU has no CUDA graphs"
    assert why("channels_last") == "the model has fewer than two convolutions of images"
    assert why("amp") is None


def test_rungs_that_a_step_has_nothing_for_say_so():
    op = op_of("custom")

    def why(rung, dtype="bfloat16"):
        return op.variants[rung].unsupported(Case(op.name, rung, dtype, (("B", 16),), device="cuda"))

    assert why("sdpa_flash") == "the model never calls scaled_dot_product_attention"
    assert why("checkpoint") == "the model has no list of blocks of one class"
    assert why("accumulate") == "the file's own step takes the batch as a whole"
    assert "float16 needs a scaled loss" in why("amp", "float16")
    assert why("amp") is None


@pytest.mark.parametrize(
    ("patched", "why"), [("swapped: 0, left: 1", "harness.nn.patch finds nothing to swap in the model"), ("", "")]
)
def test_a_model_without_anything_of_ours_has_no_such_rungs(patched, why):
    sheet = StepSheet("ladder_x", "x.py", "", 8, ("model", "batch", "loss"), patched=patched)
    names = ["patched", "patched_compile", "compile"]
    found = [_rungs.why_not(rung, sheet, "bfloat16") for rung in _rungs.of_sheet(sheet) if rung.name in names]
    assert sorted(found) == ["", why, why]


def test_a_model_that_refuses_torch_compile_costs_that_rung_alone(ready):
    with pytest.raises(UsageError) as raised, ready("uncompilable", "compile"):
        pass
    assert raised.value.message.startswith("torch.compile can't compile the model: ")
    assert "returned an invalid gradient" in raised.value.message
    assert "the other rungs don't need it" in raised.value.advice


def test_a_model_of_which_torch_compile_leaves_out_a_part_has_a_warning(ready):
    with ready("interrupted", "compile") as session:
        assert session.check() is None
        (found,) = (one for one in session.warnings if one.code == "partly-compiled")
    assert "left out a part of the model" in found.message
    assert "item" in found.message
    with ready("attention", "compile") as session:
        assert session.check() is None
        assert not session.warnings


def test_a_model_that_torch_compile_leaves_out_is_not_called_compiled(ready):
    with pytest.raises(UsageError, match=r"torch\.compile compiles nothing of the model"), ready("left_out", "compile"):
        pass


def test_a_step_that_fails_says_that_it_is_the_files_own(ready, monkeypatch):
    def fail(*_):
        raise ValueError("no such layer")

    answered("attention")  # which makes steps itself, once
    monkeypatch.setattr(StepTrainer, "_backward", fail)
    _reference.forget()
    with pytest.raises(UsageError, match="the step itself fails, as the file has it: ValueError: no such layer"):
        ready("attention", "amp").__enter__()


@pytest.mark.slow  # test_a_gradient_that_is_absent_or_twice_as_large_is_found has wrong rungs
def test_a_rung_below_that_fails_already_gets_the_blame(ready, monkeypatch):
    real = StepTrainer._backward

    def fail(trainer):
        if trainer.half is not None:
            raise ValueError("no halves")
        return real(trainer)

    answered("attention")
    monkeypatch.setattr(StepTrainer, "_backward", fail)
    told = "^amp, which patched goes on from, fails already: the model fails under autocast: ValueError: no halves$"
    with pytest.raises(UsageError, match=told):
        ready("attention", "patched").__enter__()


def complaint(ready, step, rung):
    with ready(step, rung) as session:
        return session.check() or ""


@pytest.mark.slow  # the tests around have gradients that are found
def test_what_rounding_makes_of_a_gradient_is_allowed():
    """A few inputs of a ReLU lie so near 0 that rounding decides on their side, which moves gradients by percents."""
    calm = StepSetup(str(STEPS / "convolutions.py"), 8, 5, torch.device("cpu"), "float16", calm=True)
    _reference.forget()
    amp = next(rung for rung in _rungs.rungs() if rung.name == "amp")
    assert _reference._allowed(calm, "float16")  # by torch's own draws, which aren't changed below
    real, verdicts = _gradients.Redrawn.compared, set()
    for seed in range(100, 110):

        def near(twin, wanted, share=2.0**-10, again=seed):
            return real(twin, wanted, share, again)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_gradients.Redrawn, "compared", near)
            verdicts.add(_reference.gradient_verdict(amp, calm))
    assert verdicts == {_reference.GradientVerdict((), ())}


def test_a_gradient_that_is_absent_or_twice_as_large_is_found(ready, patched_to):
    def double(trainer):
        trainer.model.head.weight.register_hook(lambda grad: 2 * grad)

    patched_to(double)
    assert "gradient of the first step is off: head.weight by 99." in complaint(ready, "attention", "patched")


def test_a_weight_that_gets_no_gradient_is_found(ready, patched_to):
    patched_to(lambda trainer: trainer.model.head.weight.requires_grad_(False))
    assert "had no gradient: head.weight" in complaint(ready, "attention", "patched")


def test_an_optimizer_that_changes_nothing_is_found(ready, patched_to):
    def rest(trainer):
        trainer.optimizer.step = lambda *_: None

    patched_to(rest)
    assert complaint(ready, "convolutions", "patched")


@pytest.mark.slow  # training/test_timed_step.py has what is found of a timed step
def test_a_timed_step_that_ignores_its_batch_is_found(ready):
    with ready("convolutions", "amp") as session:
        call = session.rotation().calls[0]
        call()
        trainer = call.tensors.steps.trainer
        kept = _trainer._mapped(trainer.batch, torch.clone)
        real = trainer._backward

        def stale():
            fresh, trainer.batch = trainer.batch, kept
            try:
                return real()
            finally:
                trainer.batch = fresh

        trainer._backward = stale
        # The labels no longer fit the images, which the model has learned by now.
        for _ in range(30):
            call()
        assert "a timed step on a new batch has a loss of" in "; ".join(
            _steps.recheck(session._ctx, call.tensors, call)
        )
