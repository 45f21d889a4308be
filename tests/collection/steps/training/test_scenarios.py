"""The small scenario runs on a CPU within seconds; the other scenarios have the sizes of the texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.collection.models import MODELS
from harness.collection.steps.training._bert import BERT
from harness.collection.steps.training._ladders import rung_of
from harness.collection.steps.training._resnet import RESNET
from harness.collection.steps.training._rungs import AUTOTUNE
from harness.collection.steps.training._steps import refusal
from harness.collection.steps.training._swin import SWIN
from harness.devices.cpu import Cpu
from harness.measure import measure
from harness.model import Timing
from harness.ops import Catalogue
from harness.scenario import Selection, find, load, plan
from tests.one_test import one_test
from tests.rare import rare

CATALOGUE = Catalogue()
SHORT = Timing(precision=0.5, max_time=0.02)


def jobs(name, device):
    return plan(load(find([name]), CATALOGUE), CATALOGUE, Selection(device)).jobs


@pytest.mark.parametrize(
    "job",
    [
        (pytest.param if job.case.op == "swin_infer" else rare)(job, id=job.case.id)
        for job in jobs("train_small", "cpu")
        if job.case.variant in ("fused_optimizer", "eager")
    ],
)
def test_small_steps_are_measured_on_a_cpu(job, short_timing):
    """With fewer items, since a CPU computes slowly in float16. Batch norm needs some.

    That rungs of every model pass their check, test_first_step.py has, and test_steps.py a training that is measured.
    """
    items = 4 if job.case.op == "resnet50_train" else 2
    case = replace(job.case, shape=(("B", items),))
    found = measure(replace(job, case=case, timing=SHORT), CATALOGUE[job.case.op], Cpu())
    assert (found.status, found.timer) == ("ok", "steady"), found.error
    assert found.work.items == items
    assert found.sets == 1


def test_the_small_scenario_has_every_model_and_every_rung_of_a_cpu():
    found = {(job.case.op, job.case.variant) for job in jobs("train_small", "cpu")}
    ops = [CATALOGUE[name] for name in ("swin_train", "bert_train", "resnet50_train", "swin_infer")]
    every = {(op.name, v.name) for op in ops for v in op.variants.values() if "cpu" in v.devices}
    assert {variant for _, variant in every - found} == {"compile", "compile_half_norm"}  # which would compile C++
    assert all(dict(job.case.choices)["model"].endswith("_toy") for job in jobs("train_small", "cpu"))


@pytest.mark.parametrize(("name", "rungs"), [("swin_train", SWIN), ("bert_train", BERT), ("resnet50_train", RESNET)])
def test_a_scenario_has_every_rung_in_the_order_of_the_ladder(name, rungs):
    """Reports draw the ladder from it. The one that takes minutes to compile has a scenario of its own."""
    (listed,) = (definition.variants for definition in load(find([name]), CATALOGUE))
    for index, rung in enumerate(listed):
        base = next(one.base for one in rungs if one.name == rung)
        assert base in listed[:index] or (rung, base) == ("float32", "")
    slow = {rung.name for rung in rungs if rung.compiled == AUTOTUNE}
    assert {*listed} == {rung.name for rung in rungs} - slow
    assert slow < {job.case.variant for job in jobs("train_autotune", "cuda") if job.case.op == name}


@pytest.mark.parametrize("op", ["swin_train", "bert_train", "resnet50_train"])
def test_every_rung_is_measured_as_a_graph_once(op):
    """As a variant of its own, or by the choice of how a step is run."""
    by_choice = {job.case.variant for job in jobs("train_graphs", "cuda") if job.case.op == op}
    assert all(job.case.values["step"] == "graph" for job in jobs("train_graphs", "cuda"))
    rungs = {job.case.variant: rung_of(op, job.case.variant) for job in jobs(op, "cuda")}
    as_variants = {rung.base for rung in rungs.values() if rung.graph and rungs[rung.base].compiled}
    assert by_choice | as_variants == {name for name, rung in rungs.items() if not rung.graph}
    assert not by_choice & as_variants


def test_losses_are_of_all_models_of_the_text_and_of_both_ways_of_unscaling():
    found = {(job.case.op, job.case.values["model"], job.case.variant) for job in jobs("losses", "cuda")}
    swins = ("swin_tiny", "swin_base", "swin_large")
    assert {("swin_train", model, name) for model in swins for name in ("float32", "attention")} < found
    unscaled = {(op, model) for op, model, name in found if name == "unscale"}
    assert unscaled == {("bert_train", "bert_base"), ("resnet50_train", "resnet50")}
    assert {(op, model, "unscale_loop") for op, model in unscaled} < found


def test_what_clipping_costs_is_measured_in_the_same_cases_with_and_without():
    found = [job.case for job in jobs("bert_clip", "cuda")]
    with_, without = ([case for case in found if case.values["clip"] == clip] for clip in (1.0, "none"))
    assert {(case.variant, case.shape) for case in with_} == {(case.variant, case.shape) for case in without}
    assert all(refusal(rung_of("bert_train", case.variant))(case) is None for case in found)
    other = {job.case.values["clip"] for name in ("bert_train", "train_graphs") for job in jobs(name, "cuda")
             if job.case.op == "bert_train"}  # fmt: skip
    assert other == {"none"}


def test_inference_has_every_variant_but_those_that_try_kernels_for_minutes():
    every = CATALOGUE["swin_infer"].variants.keys()
    slow = {name for name in every if "autotune" in name}
    assert slow
    assert {job.case.variant for job in jobs("swin_infer", "cuda")} == every - slow
    assert slow < {job.case.variant for job in jobs("train_autotune", "cuda") if job.case.op == "swin_infer"}


@pytest.mark.parametrize("name", ["swin_train", "bert_train", "resnet50_train"])
def test_rungs_that_a_claim_calls_alike_in_their_types_are(name):
    (definition,) = load(find([name]), CATALOGUE)
    alike = [claim for claim in definition.claims if "same types of activations" in claim.text]
    assert bool(alike) == (name == "swin_train")
    for claim in alike:
        one, other = rung_of(name, claim.variant), rung_of(name, claim.over)
        assert (one.norm or one.half_norm, one.half) == (other.norm or other.half_norm, other.half), claim.text


@one_test(
    "name",
    [
        "swin_train",
        "bert_train",
        "resnet50_train",
        "swin_infer",
        "train_autotune",
        "train_graphs",
        "train_host",
        "bert_clip",
    ],
)
def test_the_scenarios_of_a_gpu_have_whole_models(name):
    found = {job.case.values["model"] for job in jobs(name, "cuda")}
    assert found
    assert found <= MODELS.keys() - {"swin_toy", "bert_toy", "resnet_toy"}
