"""Trainings of a user's step from several seeds: the same data for all, and other weights for each seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness import devices
from harness.collection.steps.ladder import _learning, _rungs
from harness.collection.steps.ladder._declared import step_of
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.ladder._trainer import StepSetup
from harness.collection.steps.training._curves import BATCHES, TrainingCurve
from harness.collection.steps.training.profile import losses, trainings
from harness.collection.steps.training.profile.files import LossPlan
from harness.errors import UsageError
from harness.model import Case
from harness.ops import Catalogue
from harness.ranks import Group
from harness.session import EndedError
from tests.collection.conftest import traced_only
from tests.collection.steps.ladder.conftest import answered, op_of


def curve(step, rung, *, seed, steps=12, dtype="bfloat16"):
    known = step_of(op_of(step).variants[rung])
    assert known
    return _learning.trained(*known, dtype, torch.device("cpu"), seed=seed, steps=steps)


def test_a_rung_learns_as_the_baseline_does_from_the_same_seed():
    plain, again, amp = (curve("attention", rung, seed=1) for rung in ("float32", "float32", "amp"))
    assert plain == again
    assert amp.losses == pytest.approx(plain.losses, rel=2e-2)
    assert amp.losses != plain.losses
    other = curve("attention", "float32", seed=2)
    assert abs(other.losses[0] - plain.losses[0]) > 1e-3
    assert len(plain.losses) == 12
    assert (plain.skipped, plain.forced) == ((), ())


def test_dropout_comes_from_the_seed(tmp_path):
    """With weights that are the same for all seeds, so that only dropout differs."""
    file = tmp_path / "step.py"
    file.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.ones(4))\n"
        "    def forward(self, x):\n        return torch.nn.functional.dropout(x * self.weight, 0.5)\n"
        "def model():\n    return Model()\n"
        "def batch():\n    return torch.randn(8, 4)\n"
        "def loss(model, x):\n    return model(x).square().mean()\n"
    )
    sheet = StepSheet("ladder_step", str(file), "", 8, ("model", "batch", "loss"))
    one, again, other = (
        _learning.trained(_rungs.FLOAT32, sheet, "bfloat16", torch.device("cpu"), seed=seed, steps=1)
        for seed in (1, 1, 2)
    )
    assert one.losses == again.losses
    assert one.losses != other.losses


def test_a_file_with_a_step_of_its_own_is_trained():
    found = curve("custom", "patched", seed=1)
    assert found.losses[8] < found.losses[0]  # on the same batch again


def test_batches_are_the_same_for_all_seeds_and_differ_from_each_other():
    source = answered("attention")["source"]
    one, other = (_learning.batches(StepSetup(source, 8, seed, torch.device("cpu"), "bfloat16")) for seed in (1, 2))
    assert len(one) == BATCHES
    assert all(torch.equal(x, y) for a, b in zip(one, other, strict=True) for x, y in zip(a, b, strict=True))
    assert not torch.equal(one[0][0], one[1][0])


def test_batches_of_different_sizes_are_refused(tmp_path):
    file = tmp_path / "step.py"
    file.write_text(
        "import torch\n"
        "def model():\n    return torch.nn.Linear(4, 1)\n"
        "def batch():\n    return torch.randn(int(torch.randint(2, 9, ())), 4)\n"
        "def loss(model, x):\n    return model(x).square().mean()\n"
    )
    with pytest.raises(UsageError, match=r"batch\(\) gives tensors of \d sizes"):
        _learning.batches(StepSetup(str(file), 8, 1, torch.device("cpu"), "bfloat16"))


@pytest.mark.slow  # the tests above have the trainings that the tool makes
def test_the_tool_trains_users_steps(tmp_path: Path):
    op = op_of("attention")
    size = answered("attention")["size"]
    cases = [Case(op.name, rung, "bfloat16", (("B", size),), device="cpu") for rung in ("float32", "graph", "patched")]
    plan = LossPlan(10, 2, 16, tmp_path / "losses-1")
    with trainings.started(cases, plan, {op.name: op}, devices.kinds()["cpu"]) as train:
        train(1)
        with pytest.raises(EndedError, match="a CPU has no CUDA graphs"):
            train(2)
        train(3)
    found = losses.read(tmp_path / "losses-1", [cases[0].id, "", cases[2].id], 1)
    assert [dict(one.values)["size"] for one in found] == [size, size]
    assert [len(dict(one.series)["means"]) for one in found] == [2, 2]
    assert dict(found[1].series)["forced"] == ()
    assert dict(found[1].values)["loss"] == pytest.approx(dict(found[0].values)["loss"], rel=1e-3)


def test_what_is_another_rung_on_one_device_isnt_trained(tmp_path: Path):
    op = op_of("attention", 2)
    case = Case(op.name, "fsdp", "bfloat16", (("B", 8),), device="cpu")
    plan = LossPlan(10, 2, 16, tmp_path / "losses-1")
    with (
        trainings.started([case], plan, {op.name: op}, devices.kinds()["cpu"]) as train,
        pytest.raises(EndedError, match="on one device it does what another rung does"),
    ):
        train(1)


def test_of_several_ranks_the_first_one_writes_and_every_rung_is_trained(tmp_path: Path, monkeypatch):
    """pair.py has what ranks learn from each other."""
    op = op_of("attention", 2)
    cases = [
        Case(op.name, rung, "bfloat16", (("B", 8),), world=2, device="cpu") for rung in ("fsdp", "float32", "streams")
    ]
    places = []

    def trained(*_, place, **__):
        places.append(place)
        return TrainingCurve((1.0,), (), ())

    monkeypatch.setattr(_learning, "trained", trained)
    plan = LossPlan(1, 2, 16, tmp_path / "losses-1")
    for rank in (0, 1):
        with trainings.started(cases, plan, {op.name: op}, devices.kinds()["cpu"], Group(rank, 2)) as train:
            train(1)
            train(2)
            with pytest.raises(EndedError, match="a CPU has no CUDA graphs"):
                train(3)
        written = {path.name for path in tmp_path.iterdir()}
        assert written == {"losses-1-1.losses.json", "losses-1-2.losses.json"}
        assert places == [(rank, 2)] * 4
        places.clear()
        if not rank:
            first = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == first


def test_bundled_steps_of_several_devices_arent_trained_longer(tmp_path: Path):
    case = Case("swin_train", "float32", "bfloat16", (("B", 8),), (("model", "swin_tiny"),), world=2, device="cpu")
    plan = LossPlan(1, 2, 16, tmp_path / "losses-1")
    with (
        trainings.started([case], plan, Catalogue(), devices.kinds()["cpu"], Group(0, 2)) as train,
        pytest.raises(EndedError, match="only users' steps are trained longer"),
    ):
        train(1)


@pytest.mark.slow  # test_steps.py has what is said of a model that refuses torch.compile
def test_a_rung_that_fails_says_why():
    known = step_of(op_of("uncompilable").variants["compile"])
    assert known
    told = pytest.raises(UsageError, match=r"torch\.compile can't compile the model")
    with traced_only(torch.device("cpu")), told:
        _learning.trained(*known, "bfloat16", torch.device("cpu"), seed=1, steps=10)


def test_other_variants_are_no_rung_of_a_step():
    op = op_of("attention")
    assert step_of(op.variants["float32"])[0] == _rungs.FLOAT32
    assert step_of(type(op.variants["float32"])("mine", "of a plug-in", lambda _: None)) is None
