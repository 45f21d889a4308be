"""The tool `losses`: cases are trained by the process that a profiler would watch, and what it wrote is attached."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from harness.cli import app, profile
from harness.collection.steps.training import _curves
from harness.collection.steps.training._curves import TrainingCurve
from harness.collection.steps.training.profile import losses, trainings
from harness.errors import UsageError
from harness.model import Attachment, Case, Job
from harness.profile import Ways, _procedure, _request, _target, tools
from harness.profile._request import CaseRan, ProfileRequest

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command(cls=profile.ProfileCommand)(profile.command)


def bert(variant: str) -> Case:
    return Case("bert_train", variant, "float16", (("B", 512),), (("model", "bert_toy"),), device="cpu")


def ran(folder: Path, *cases: Case) -> tuple[int, list[CaseRan]]:
    """Train the cases for a few steps from two seeds. Gives the exit code, and how each ended."""
    file = folder / "losses-1.request.json"
    options = (("steps", 12), ("seeds", 2), ("batch", 4))
    base = str(folder / "losses-1")
    _request.write(ProfileRequest("cpu", (), tuple(map(Job, cases)), tool="losses", options=options, files=base), file)
    code = _target.main([str(file)])
    return code, _request.answers(_request.answers_file(file))


@pytest.mark.slow  # the next test has what was trained and kept
@pytest.mark.usefixtures("one_thread")
def test_cases_are_trained_and_what_they_gave_is_attached(tmp_path: Path) -> None:
    other = Case("prelu", "eager", "float32", (("N", 1), ("C", 1), ("H", 1), ("W", 1)), device="cpu")
    cases = [bert("float32"), other, bert("amp")]
    code, answers = ran(tmp_path, *cases)
    assert (code, [each.status for each in answers]) == (0, ["ok", "unsupported", "ok"])
    assert answers[1].error == "it isn't a step of a training"
    named = [each.case if each.status == "ok" else "" for each in answers]
    plain, amp = losses.read(tmp_path / "losses-1", named, 4)
    assert (plain.case, amp.case) == (cases[0].id, cases[2].id)
    values, series = dict(amp.values), dict(amp.series)
    assert (values["steps"], values["size"], values["seeds"]) == (12, 4, 2)
    assert values["last"] < values["loss"] == statistics.fmean(series["means"])
    assert series["skipped_1"] == series["skipped_2"] == series["forced"] == (4, 8)
    assert series["losses_1"] != series["losses_2"], "seeds differ"
    assert statistics.fmean(series["losses_1"]) == pytest.approx(series["means"][0], abs=1e-5)
    assert dict(plain.series)["losses_1"][0] == pytest.approx(series["losses_1"][0], rel=1e-2), (
        "the same model and data"
    )
    assert losses.imported(tmp_path / "losses-1-3.losses.json", [cases[2].id]) == [amp]
    assert losses.imported(tmp_path / "losses-1-3.losses.json", ["another"]) == []


@pytest.mark.usefixtures("one_thread")
def test_what_was_trained_before_an_interrupt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = bert("float32"), bert("amp")

    def interrupted(part: _procedure.Part, *_: object) -> None:
        _request.write(replace(part.request, jobs=(Job(first),)), part.request_file)
        _target.main([str(part.request_file)])
        raise KeyboardInterrupt

    monkeypatch.setattr(_procedure, "_carried_out", interrupted)
    kept: list[Attachment] = []
    options = {"steps": 10, "seeds": 1, "batch": 1}
    with pytest.raises(KeyboardInterrupt):
        _procedure.profile("losses", [Job(first), Job(second)], device="cpu", plugins=[], folder=tmp_path,
                           told=lambda *_: None, options=options, keep=kept.extend)  # fmt: skip
    assert [attachment.case for attachment in kept] == [first.id]


def test_points_of_a_curve_are_means_of_steps(tmp_path: Path) -> None:
    curve = {"losses": [float(step) for step in range(300)], "skipped": [7], "forced": [100, 200]}
    file = tmp_path / "a.losses.json"
    file.write_text(json.dumps({"case": "a", "steps": 300, "size": 16, "curves": [curve]}))
    (found,) = losses.imported(file, [])
    series = dict(found.series)
    assert series["losses_1"][:2] == (2, 7)
    assert len(series["losses_1"]) == losses.POINTS
    assert series["skipped_1"] == (7,)
    assert dict(found.values)["last"] == statistics.fmean(range(250, 300))


@pytest.mark.parametrize(
    ("error", "code", "status"), [(MemoryError("no room"), 0, "out_of_memory"), (ValueError("bad"), 1, "crashed")]
)
def test_a_training_that_fails_is_the_error_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, status: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(_curves, "trained", fails)
    ended, answers = ran(tmp_path, bert("float32"))
    assert (ended, [each.status for each in answers]) == (code, [status])
    assert str(error) in answers[0].error


def test_a_file_without_losses_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.losses.json"
    file.write_text("{}")
    with pytest.raises(UsageError, match="has no losses that can be read"):
        losses.imported(file, [])


def test_only_losses_take_steps_and_seeds() -> None:
    error = CliRunner().invoke(APP, ["torch", "quick", "--steps", "300"]).exception
    assert isinstance(error, UsageError)
    assert error.message == "torch takes no --steps: it is for losses"
    assert CliRunner().invoke(APP, ["losses", "quick", "--steps", "3"]).exit_code == 2
    asked = Ways.of(tools()["losses"]).asked({"steps": 30, "batch": 8})
    assert asked == (("steps", 30), ("seeds", 5), ("batch", 8))


def test_the_help_tells_of_losses_and_their_options() -> None:
    text = " ".join(CliRunner().invoke(app, ["profile", "--help"]).output.split())
    assert "losses the losses of a few hundred steps of training, from several seeds" in text
    assert "losses: steps of a training; 300 unless told." in text
    assert "harness profile losses --run reports/mine" in text


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads take the place of processes; how many there were, each time that they began."""
    counts: list[int] = []

    def begun(count: int, _: object) -> ThreadPoolExecutor:
        counts.append(count)
        return ThreadPoolExecutor(count)

    monkeypatch.setattr(trainings, "ProcessPoolExecutor", begun)
    return counts


def test_fewer_processes_train_where_memory_lacks(threads: list[int]) -> None:
    calls: Counter[int] = Counter()

    def training(seed: int) -> TrainingCurve:
        calls[seed] += 1
        if seed == 2 and calls[seed] == 1:
            raise MemoryError("16 GiB")
        return TrainingCurve((float(seed),), (), ())

    beside = trainings._Beside({(1, seed): partial(training, seed) for seed in range(6)}, 5)
    assert [beside.curve((1, seed)).losses for seed in range(6)] == [(float(seed),) for seed in range(6)]
    beside.end()
    assert threads == [5, 2]
    assert calls[2] == 2
    assert calls[0] == calls[1] == 1  # they had ended


def test_a_training_that_fits_in_no_memory_costs_only_itself(threads: list[int]) -> None:
    def training(seed: int) -> TrainingCurve:
        if seed == 0:
            raise MemoryError("999 GiB")
        if seed == 1:
            raise RuntimeError("broken")
        return TrainingCurve((0.5,), (), ())

    beside = trainings._Beside({(1, seed): partial(training, seed) for seed in range(4)}, 4)
    with pytest.raises(MemoryError, match="999 GiB"):
        beside.curve((1, 0))
    with pytest.raises(RuntimeError, match="broken"):
        beside.curve((1, 1))
    assert beside.curve((1, 3)).losses == (0.5,)
    beside.end()
    assert threads == [4, 2, 1]


@pytest.mark.gpu
def test_processes_train_beside_each_other_on_a_gpu(tmp_path: Path) -> None:
    jobs = [Job(replace(bert(variant), device="cuda")) for variant in ("float32", "sdpa_graph", "fused_norm_adam")]
    found = _procedure.profile(
        "losses",
        jobs,
        device="cuda",
        plugins=[],
        folder=tmp_path,
        told=lambda *_: None,
        options={"steps": 12, "seeds": 2, "batch": 4},
    )
    assert [ran.status for ran in found.cases] == ["ok"] * 3
    assert [each.case for each in found.attachments] == [job.case.id for job in jobs]
    for attachment in found.attachments:
        series = dict(attachment.series)
        assert series["skipped_1"] == series["skipped_2"] == (4, 8)
