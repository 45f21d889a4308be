"""Steps as CUDA graphs: what of a step a graph holds, which cases ask for one, and what a case's id says of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from harness.collection.steps.training import _curves, _first_step, _float8, _steps, _trainer
from harness.collection.steps.training._ladders import LADDERS, rung_of, rung_of_case
from harness.collection.steps.training._rungs import AMP, FLOAT32, FUSED, UNSCALE, UNSCALE_LOOP, as_asked
from harness.collection.steps.training._trainer import Trainer
from harness.model import Case
from harness.ops import Catalogue, known_cases
from tests.one_test import one_test
from tests.rare import rare

CATALOGUE = Catalogue()
ASKING = (AMP, UNSCALE, UNSCALE_LOOP)
"""The rungs whose optimizer torch's scaler asks the host about."""


def graphs_of(monkeypatch):
    """Let a graph be what was to be captured. Gives the names of what was, with the number of ranks."""
    held = []

    def captured(step, *, ranks):
        held.append(step.__name__ if ranks == 1 else (step.__name__, ranks))
        return step

    monkeypatch.setattr(_trainer, "captured", captured)
    for module in (_first_step, _curves, _steps):
        monkeypatch.setattr(module, "side_stream", nullcontext)
    return held


def case(op, variant, dtype="float16", **choices):
    given = {name: choices.get(name, choice.usual) for name, choice in CATALOGUE[op].choices.items()}
    return known_cases.recognised(Case(op, variant, dtype, (("B", 8),), tuple(given.items())), CATALOGUE)


def test_a_graph_holds_the_whole_step_unless_the_host_must_ask(setup, monkeypatch):
    held = graphs_of(monkeypatch)
    for rung in LADDERS[next(op for op in LADDERS if op.startswith(setup.model.partition("_")[0]))]:
        if not rung.compiled:
            Trainer(replace(rung, graph=True), setup).as_graph()
            expected = "_backward" if rung.name in {one.name for one in ASKING} else "loss_of_step"
            assert held.pop() == expected, rung.name
    Trainer(replace(AMP, graph=True), replace(setup, dtype=torch.bfloat16)).as_graph()
    assert held == ["loss_of_step"], "no loss is scaled in bfloat16"


def test_a_graph_knows_how_many_ranks_communicate(setup, monkeypatch):
    held = graphs_of(monkeypatch)
    for rung in (FUSED, AMP):
        Trainer(replace(rung, graph=True), setup).as_graph(ranks=2)
    assert held == [("loss_of_step", 2), ("_backward", 2)]


@pytest.mark.parametrize(
    ("rung", "training"),
    [
        *((rung, "bert_train") for rung in (AMP, FUSED)),
        *(rare(rung, "bert_train") for rung in ASKING[1:]),
        *(rare(*given) for given in ((AMP, "resnet50_train"), (UNSCALE_LOOP, "swin_train"), (FUSED, "resnet50_train"))),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_steps_of_a_graph_are_the_steps(rung, setup, monkeypatch):
    graphs_of(monkeypatch)
    replay, plain = Trainer(replace(rung, graph=True), setup).as_graph(), Trainer(rung, setup).loss_of_step
    found = []
    for step in (replay, plain):
        torch.manual_seed(3)
        found.append([step().item() for _ in range(3)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert _first_step.complaints(replace(rung, graph=True), setup) == ()


@one_test("op", LADDERS)
def test_the_choice_makes_a_graph_of_any_rung_that_is_none(monkeypatch, op):
    monkeypatch.setattr(_float8, "obstacle", lambda _: None)  # torchao isn't installed
    for rung in LADDERS[op]:
        asked, plain = case(op, rung.name, step="graph"), case(op, rung.name)
        assert rung_of_case(plain) == rung
        assert rung_of_case(asked) == replace(rung, graph=True)
        reason = _steps.refusal(rung)(asked)
        assert (reason is not None) == rung.graph
        assert _steps.refusal(rung)(plain) is None
    assert _steps.refusal(FLOAT32)(replace(asked, device="cpu")).startswith("a CPU has no CUDA graphs")
    assert _steps.refusal(UNSCALE_LOOP)(case(op, "unscale_loop", "bfloat16")) == "bfloat16 needs no scaled loss"


@one_test("op", LADDERS)
def test_ids_of_steps_without_a_graph_are_as_before_there_was_the_choice(op):
    assert "step" not in case(op, "amp").id
    assert case(op, "amp", step="graph").id.endswith("step=graph")
    assert known_cases.translated("swin_train/graph/float16/B64/model=swin_large") == (
        "swin_train/graph/float16/B64/model=swin_large"
    )
    assert known_cases.named("swin_train/amp/float16/B64/model=swin_large,step=graph") is not None


def test_a_longer_training_is_one_of_replays_if_its_case_asks_for_a_graph(monkeypatch):
    held = graphs_of(monkeypatch)
    asked = Case("bert_train", "amp", "float16", (("B", 8),), (("model", "bert_toy"), ("step", "graph")), device="cpu")
    found = _curves.trained(asked, torch.device("cpu"), size=4, seed=1, steps=6)
    assert held == ["_backward"]
    assert found.skipped == found.forced == (2, 4)
    assert as_asked(rung_of("bert_train", "amp"), asked).graph
