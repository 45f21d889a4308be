"""Gradients of queries and keys: faults of a rung are found, and a step that goes wrong once is no fault."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from harness.collection.steps.ladder import _gradients, _reference, _rungs
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer
from tests.collection.steps.ladder.conftest import STEPS

CPU = torch.device("cpu")
RUNGS = {rung.name: rung for rung in _rungs.rungs()}


def setup(step: str = "heads", **fields) -> StepSetup:
    return StepSetup(str(STEPS / f"{step}.py"), 8, 5, CPU, "bfloat16", **fields)


class Softmax(torch.autograd.Function):  # type: ignore[misc] # torch has no types
    """Softmax whose gradient is transposed in some calls of the backward, as `wrong` tells of each."""

    @staticmethod
    def forward(ctx, wrong, scores):
        ctx.wrong, shares = wrong, torch.softmax(scores, -1)
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx, gradient):
        (shares,) = ctx.saved_tensors
        own = shares * (gradient - (shares * gradient).sum(-1, keepdim=True))
        return None, own.transpose(-1, -2) if ctx.wrong() else own


def attention(trainer):
    """The attention of the first of two blocks."""
    return trainer.model[1][0].attention


def softmax(trainer, wrong):
    attention(trainer).softmax = lambda scores, _: Softmax.apply(wrong, scores)


def half_a_head(trainer, which):
    """The gradient of the first of four heads is half as large."""
    shares = torch.ones(32)
    shares[:8] = 0.5
    layer = getattr(attention(trainer), which)
    layer.register_forward_hook(
        lambda _, __, out: out.register_hook(lambda gradient: gradient * shares.to(gradient)) and None
    )


def mask(trainer):
    """The last of eight tokens isn't seen."""
    attention(trainer).seen = 7


@pytest.mark.parametrize(
    ("fault", "weight"),
    [
        (lambda trainer: half_a_head(trainer, "query"), "1.0.attention.query.weight"),
        (lambda trainer: half_a_head(trainer, "key"), "1.0.attention.key.weight"),
        (mask, "1.0.attention.query.weight"),
        (lambda trainer: softmax(trainer, lambda: True), "1.0.attention.key.weight"),
    ],
    ids=["half a head of queries", "half a head of keys", "mask", "transposed gradient of softmax"],
)
def test_a_fault_in_queries_and_keys_is_found(patched_to, fault, weight):
    patched_to(fault)
    (found,) = _reference.gradient_verdict(RUNGS["patched"], setup()).complaints
    assert f"{weight} by " in found


def test_a_gradient_that_is_off_in_one_step_is_no_fault_and_is_told(ready, patched_to):
    """As in a run of BERT: a layer's queries and keys were off by 66% to 78% in one of three processes."""
    steps = count()
    patched_to(lambda trainer: softmax(trainer, lambda: not next(steps)))
    with ready("heads", "patched") as session:
        assert session.check() is None
        (warning,) = session.warnings
    assert warning.code == "unsteady-gradients"
    assert warning.message.startswith("gradients of 5 weights were off in the first step, and right when")
    assert "1.0.attention.query.weight by " in warning.message


def test_a_gradient_is_made_again_until_it_is_right_and_eight_times_at_most(patched_to):
    made = []
    patched_to(lambda trainer: softmax(trainer, lambda: made.append(0) or len(made) < right))
    for right, calls in ((1, 1), (3, 3), (8, 8), (9, 8)):
        made.clear()
        verdict = _reference.gradient_verdict(RUNGS["patched"], setup())
        assert (len(made), bool(verdict.complaints), bool(verdict.unsteady)) == (calls, right == 9, 1 < right < 9)


def test_a_step_without_gradients_makes_nothing_right(monkeypatch, patched_to):
    """As a step in float16 has none whose gradients overflow."""
    real = _gradients.Redrawn.compared

    def once(twin, wanted, share=0.0, seed=0):
        return real(twin, wanted) if seed < _reference._DRAWS else _gradients.ComparedGradients({}, frozenset())

    monkeypatch.setattr(_gradients.Redrawn, "compared", once)
    patched_to(lambda trainer: softmax(trainer, lambda: True))
    verdict = _reference.gradient_verdict(RUNGS["patched"], setup())
    assert (len(verdict.complaints), verdict.unsteady) == (1, ())


def plain(trainer) -> dict[str, torch.Tensor]:
    """The gradients that the optimizer finds in a step, in float64."""
    found = {}

    def see(*_):
        found.update({name: one.grad.double().clone() for name, one in trainer.model.named_parameters()})

    trainer.optimizer.register_step_pre_hook(see)
    trainer.loss_of_step()
    return found


@pytest.mark.parametrize("piece", [7, 2**20])
def test_distances_by_pieces_are_those_of_whole_gradients(monkeypatch, piece):
    """Channels last has the elements of one of them in another order in memory."""
    monkeypatch.setattr(_gradients, "_PIECE", piece)
    setups = [setup("convolutions", calm=True), setup("convolutions", calm=True, wide=True)]
    rungs = RUNGS["channels_last"], _rungs.FLOAT32
    wanted, loss = _gradients.kept(StepTrainer(rungs[1], setups[1]))
    found, _ = _gradients.compared(StepTrainer(rungs[0], setups[0]), wanted)
    own, want = (plain(StepTrainer(*one)) for one in zip(rungs, setups, strict=True))
    assert float(loss) > 0
    assert found.given == found.distances.keys() == wanted.squares.keys() == want.keys()
    for name, one in want.items():
        distance, length = float((own[name] - one).norm()), float(one.norm())
        assert wanted.share(found.distances, (name,)) == pytest.approx(distance / length, rel=1e-12)
    both = torch.cat([(own[name] - one).flatten() for name, one in want.items()]).norm()
    all_of_them = torch.cat([one.flatten() for one in want.values()]).norm()
    assert wanted.share(found.distances, want.keys()) == pytest.approx(float(both / all_of_them), rel=1e-12)
    assert wanted.share(found.distances, ("none",)) == 0.0


def test_sparse_gradients_are_compared():
    weight = torch.nn.Embedding(8, 2, sparse=True)
    weight(torch.tensor([1, 1, 3])).sum().backward()
    dense = _gradients._plain(weight.weight.grad)
    assert dense.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1], *[[0, 0]] * 4]
    assert float(_gradients.sum_of_squares(dense)) == 10


def test_what_is_compared_stays_as_it_is():
    one = torch.ones(3, dtype=torch.float64)
    assert float(_gradients.sum_of_squares(one, torch.full((3,), 3.0))) == 12
    assert one.tolist() == [1, 1, 1]


def test_weights_near_others_are_within_the_share_and_the_same_for_a_seed():
    values = [torch.linspace(-2, 2, 50), torch.full((3, 4), 3.0)]
    made = []
    for seed in (1, 1, 2):
        weights = [torch.zeros_like(one) for one in values]
        _gradients.set_near(weights, values, 2.0**-7, seed, CPU)
        made.append(torch.cat([one.flatten() for one in weights]))
    before = torch.cat([one.flatten() for one in values])
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    off = (made[0] - before).abs() / before.abs()
    assert 2.0**-8 < float(off.max()) < 2.0**-7 + 1e-6


def test_what_a_step_moved_is_told_and_a_rate_of_0_rests():
    twin = _gradients.Redrawn(StepTrainer(_rungs.FLOAT32, setup()))
    wanted, _ = _gradients.kept(StepTrainer(_rungs.FLOAT32, setup()))
    assert not twin.moved()
    twin.trainer.optimizer.param_groups[0]["lr"] = 0.0
    assert twin.moved() == twin.weights.keys()
    twin.trainer.optimizer.param_groups[0]["lr"] = 1e-3
    weight = twin.trainer.model[2].weight
    weight.data = weight.data.clone()  # as a step of a file may do
    assert not any(twin.compared(wanted).distances.values())
    assert twin.moved() == wanted.tensors.keys()


def test_a_librarys_model_is_drawn_once_and_copied(monkeypatch):
    """Weights that one training changes are as drawn in the next one."""
    from harness.collection.steps.ladder import _trainer
    from harness.collection.steps.ladder._given import Given

    drawn = []
    known = Given(lambda: drawn.append(0) or torch.nn.Linear(4, 2), None, None, None, None, ())
    monkeypatch.setattr(_trainer, "given", lambda *_: known)
    _trainer._library_model.cache_clear()
    one, other = (StepSetup("timm:any", 8, seed, CPU, "bfloat16") for seed in (1, 2))
    first = _trainer.model_of(one)
    before = first.weight.detach().clone()
    with torch.no_grad():
        first.weight.zero_()
    assert torch.equal(_trainer.model_of(one).weight, before)
    assert len(drawn) == 1
    assert not torch.equal(_trainer.model_of(other).weight, before)
    _trainer._library_model.cache_clear()
