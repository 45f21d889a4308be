"""Gradients of micro-batches that are added up: they are those of the whole batch, and which mistakes are found."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from harness.collection.steps.training import _first_step, _float8, _scaling, _steps, _timed_step, _trainer
from harness.collection.steps.training._curves import trained
from harness.collection.steps.training._ladders import rung_of
from harness.collection.steps.training._llama import LLAMA
from harness.collection.steps.training._rungs import AUTOTUNE, FLOAT32
from harness.collection.steps.training._settings import EAGER, forget_compiled, side_stream
from harness.collection.steps.training._trainer import Setup, Trainer, parts_of
from harness.errors import UsageError
from harness.model import Case
from harness.ops import Catalogue, known_cases
from tests.one_test import one_test
from tests.rare import rare

CPU = torch.device("cpu")
CATALOGUE = Catalogue()
SETUP = Setup("llama_toy", 8, 1, CPU, torch.bfloat16, micro_batches=4)
EXACT = Setup("llama_toy", 12, 1, CPU, torch.float64)
RUNGS = [rung_of("llama_train", name) for name in ("amp", "chunked", "chunked_half", "recompute", "fused_loss")]


def after(setup: Setup, steps: int = 3) -> tuple[list[float], list[torch.Tensor]]:
    """The losses of some steps, and the weights after them."""
    trainer = Trainer(FLOAT32, setup)
    return [trainer.loss_of_step().item() for _ in range(steps)], [one.detach() for one in trainer.weights]


@pytest.mark.parametrize(
    ("count", "clip"), [(3, 0.5), (2, None), rare(12, 0.5), rare(12, None), rare(3, None), rare(2, 0.5)]
)
def test_steps_of_micro_batches_are_steps_of_the_whole_batch(count, clip):
    """In float64 sums in another order differ in the last digits alone. Adam makes more of them where they are all."""
    whole, parts = (after(replace(EXACT, micro_batches=n, clip=clip)) for n in (1, count))
    assert parts[0] == pytest.approx(whole[0], rel=1e-12)
    assert len(set(whole[0])) == 3
    for one, other in zip(parts[1], whole[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@one_test("rung", RUNGS, ids=lambda rung: rung.name)
def test_each_kind_of_rung_adds_up_what_the_whole_batch_has(rung):
    assert _first_step.complaints(rung, SETUP) == ()


@pytest.mark.parametrize("rung", [RUNGS[0], *map(rare, RUNGS[1:])], ids=lambda rung: rung.name)
def test_a_loss_that_is_not_scaled_is_found(rung, monkeypatch):
    real = Trainer._differentiate
    monkeypatch.setattr(Trainer, "_differentiate", lambda self, loss: real(self, loss * SETUP.micro_batches))
    assert "the gradient in the first step is off" in "".join(_first_step.complaints(rung, SETUP))


def test_a_micro_batch_that_is_left_out_is_found(monkeypatch):
    monkeypatch.setattr(_trainer, "parts_of", lambda batch, count: [parts_of(batch, count)[0]] * count)
    assert "the gradient in the first step is off" in "".join(_first_step.complaints(RUNGS[0], SETUP))


@one_test(("size", "parts", "small"), [(64, 16, 16), (64, 4, 8), (4, 2, 4), (9, 3, 6), (64, 1, 8)])
def test_the_twin_has_a_batch_that_can_be_cut(size, parts, small):
    asked = replace(SETUP, size=size, micro_batches=parts)
    assert _first_step._small(asked) == replace(asked, size=small)


def test_micro_batches_are_views_of_the_batch():
    """So a new batch in the same memory is what the next step, or the replay of a graph, has."""
    trainer = Trainer(FLOAT32, SETUP)
    parts = parts_of(trainer.batch, 4)
    trainer.batch.tokens.fill_(7)
    assert [part.tokens.shape for part in parts] == [(2, 16)] * 4
    assert all(part.tokens.eq(7).all() for part in parts)
    assert parts_of(trainer.batch, 1) == [trainer.batch]


def test_a_timed_step_s_loss_is_of_all_micro_batches():
    trainer = Trainer(FLOAT32, replace(SETUP, dtype=torch.float64))
    weights = [one.detach().clone() for one in trainer.weights]
    batch = trainer.new_batch(3)
    whole = trainer.loss(trainer.model, batch).item()
    assert _timed_step.reference_losses(trainer, batch, weights, 4).tolist() == pytest.approx([whole] * 4, rel=1e-12)


# ---- Cases.


def case(op: str, variant: str, size: int = 8, **choices) -> Case:
    given = {name: choices.get(name, choice.usual) for name, choice in CATALOGUE[op].choices.items()}
    given["model"] = "llama_toy"
    found = Case(op, variant, "bfloat16", (("B", size),), tuple(given.items()), device="cpu")
    return known_cases.recognised(found, CATALOGUE)


@pytest.mark.slow  # the tests above have steps and losses of micro-batches
def test_a_case_is_checked_and_counts_the_tokens_of_the_whole_step(ready):
    with ready("llama_train", "chunked", "bfloat16", micro_batches=2) as session:
        assert session.check() is None
        assert session._prepared.first.steps.trainer.setup.micro_batches == 2
        assert session._ctx.facts["tokens_a_call"] == 4 * 16


@pytest.mark.parametrize("op", ["llama_train", "llama_scaling"])
def test_one_micro_batch_is_no_part_of_an_id(op):
    variant = next(iter(CATALOGUE[op].variants))
    assert "micro" not in case(op, variant).id
    assert "micro_batches=4" in case(op, variant, micro_batches=4).id


@one_test(("op", "variant"), [("llama_train", "chunked"), ("llama_scaling", "replicas")])
@one_test(("parts", "can"), [(1, True), (4, True), (3, False), (16, False), (2.5, False)])
def test_a_batch_is_cut_into_equal_parts_alone(op, variant, parts, can):
    reason = CATALOGUE[op].variants[variant].unsupported(case(op, variant, micro_batches=parts))
    assert reason is None if can else f"a batch of 8 can't be cut into {parts:g} equal micro-batches" in reason


def test_longer_trainings_have_micro_batches_too():
    asked = case("llama_train", "chunked", micro_batches=4)
    whole = trained(case("llama_train", "chunked"), CPU, size=4, seed=1, steps=3)
    assert trained(asked, CPU, size=4, seed=1, steps=3).losses == pytest.approx(whole.losses, rel=1e-2)
    with pytest.raises(UsageError, match="a batch of 6 can't be cut into 4 equal micro-batches"):
        trained(asked, CPU, size=6, seed=1, steps=3)


@pytest.mark.parametrize("setup_of", [_steps.setup_of, _scaling.setup_of])
def test_a_case_s_choice_reaches_its_trainings(setup_of):
    asked = case("llama_train", "chunked", micro_batches=4)
    given = {"case": asked, "s": SimpleNamespace(**asked.values), "device": CPU, "dtype": torch.bfloat16}
    ctx = SimpleNamespace(**given, generator=torch.Generator(), group=SimpleNamespace(rank=0, size=1))
    assert setup_of(ctx).micro_batches == 4


def test_every_rung_takes_micro_batches(monkeypatch):
    monkeypatch.setattr(_float8, "obstacle", lambda _: None)  # torchao isn't installed
    assert all(_steps.refusal(rung)(case("llama_train", rung.name, micro_batches=2)) is None for rung in LLAMA)


def test_flex_attention_refuses_small_heads_on_a_gpu_alone():
    found = case("llama_train", "compile_flex")
    reason = _steps.refusal(rung_of("llama_train", "compile_flex"))
    assert reason(found) is None
    assert "the model's have 8" in reason(replace(found, device="cuda"))
    large = tuple((name, "llama_1b" if name == "model" else value) for name, value in found.choices)
    assert reason(replace(found, choices=large, device="cuda")) is None


@pytest.mark.gpu
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("rung", [rung for rung in LLAMA if rung.compiled != AUTOTUNE], ids=lambda rung: rung.name)
def test_the_first_step_of_every_rung_is_right_on_a_gpu(rung, parts):
    """Graphs of all micro-batches among them; compiled rungs are compiled."""
    if reason := _steps.refusal(rung)(replace(case("llama_train", rung.name), device="cuda")):
        pytest.skip(reason)
    asked = replace(SETUP, device=torch.device("cuda", 0), micro_batches=parts)
    found = _first_step.complaints(rung, asked)
    forget_compiled()
    assert found == ()


@pytest.mark.gpu
def test_a_graph_trains_as_steps_call_by_call_do():
    losses = []
    for name in ("chunked", "chunked_graph"):
        trainer = Trainer(rung_of("llama_train", name), replace(SETUP, device=torch.device("cuda", 0)))
        with side_stream():
            found = [trainer.loss_of_step() for _ in range(EAGER)]
        step = trainer.as_graph() if trainer.rung.graph else trainer.loss_of_step
        losses.append([*(float(loss) for loss in found), *(float(step()) for _ in range(5))])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert losses[0][-1] < losses[0][0]
