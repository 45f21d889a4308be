"""The op on a CPU: four images, a tiny ResNet; what the check finds, what is reported, what is left behind."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

from harness.collection.steps.pipeline import _facts, _fed, _files, _images, _parts, _step
from harness.collection.steps.pipeline._images import Item
from harness.collection.steps.pipeline._stages import Stage, StageError
from harness.collection.steps.pipeline._step import AsyncLog, SyncLog, TrainingStep
from harness.collection.steps.pipeline._workers import ProcessImages
from harness.devices.cpu import Cpu
from harness.errors import MachineError
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops import Catalogue
from harness.scenario import Selection, find, load, plan
from harness.session import Session
from tests.rare import rare

CATALOGUE = Catalogue()
OP = CATALOGUE["image_pipeline"]
ON_A_CPU = [name for name, variant in OP.variants.items() if "cpu" in variant.devices]
COLD = "cold" if hasattr(os, "posix_fadvise") else "warm"
"""What files can be in this system's page cache at worst."""
QUEUES = {"cpu": ("prepare", "copy", "train"), "decoded": ("copy", "train")}


@pytest.fixture(autouse=True)
def small_models(optimizers_loaded, one_thread, short_timing, monkeypatch):
    """Every test here has one thread, and asks for no times: a stage works alone for as many batches as have a rate."""
    monkeypatch.setattr(_facts, "FEWEST", 1)
    monkeypatch.setitem(_facts.SHORTEST, "cpu", 0.0)


def case(variant, **choices):
    chosen = {"model": "resnet_toy", "page_cache": "warm"} | choices
    shape = (("B", 4), ("N", 6), ("T", 2))
    return Case(OP.name, variant, "bfloat16", shape, tuple(chosen.items()), device="cpu")


def checked(variant):
    with Session(case(variant), OP, Cpu()) as session:
        session.prepare()
        return session.check()


@pytest.mark.slow  # test_images.py has files that are not as they were made
@pytest.mark.parametrize("variant", ["two_buffers", rare("cached")])
def test_a_file_that_changes_meanwhile_is_named_where_it_cannot_be_decoded(variant, monkeypatch):
    made = _files.made

    def damaged(count, crew):
        files = made(count, crew)
        for file in files:
            file.write_bytes(b"no image")
        return files

    monkeypatch.setattr(_files, "made", damaged)
    with pytest.raises((StageError, MachineError), match=r"0000\d\d\.jpg: isn't the image that was made"):
        checked(variant)


def measured_once(monkeypatch):
    """Have rates alone made up before the timed steps, and an error afterwards."""
    given = iter([_parts.Rates({"read": 1.0, "prepare": 1.0, "copy": 1.0, "train": 1.0}, {})])
    monkeypatch.setattr(_parts.Parts, "rates", lambda _: next(given))


@pytest.mark.slow  # test_timed_step.py has such a step, test_workers.py its processes
@pytest.mark.parametrize("variant", [ON_A_CPU[0], *map(rare, ON_A_CPU[1:])])
def test_a_timed_case_reports_its_stages_and_leaves_no_thread_or_process(variant, monkeypatch):
    before, threads = threading.active_count(), torch.get_num_threads()
    monkeypatch.setattr(_fed, "WHOLE", 2)
    with Session(case(variant), OP, Cpu()) as session:
        session.prepare()
        assert session.check() is None
        [call] = session.calls()
        for _ in range(3):
            call()
        session.report()
    assert session.warnings == []
    facts = dict(session.facts)
    way = "cpu" if "buffer" in variant else "decoded"
    stages = {name for name in _facts.STAGES if _facts.rate_of(name) in facts}
    assert stages == ({"prepare", "copy", "train"} | ({"read"} if way == "cpu" else set()))
    rates = {name: facts[_facts.rate_of(name)] for name in stages}
    wanted = 1 / sum(1 / rate for rate in rates.values()) if variant == "one_buffer" else min(rates.values())
    assert facts[_facts.EXPECTED] == pytest.approx(wanted)
    assert _facts.STAGES[int(facts[_facts.LIMITING])] == min(rates, key=rates.get)
    assert facts[_facts.DOUBLED] > 0
    assert 1 < facts[_facts.GAIN] <= 2
    for name in QUEUES[way]:
        assert 0 <= facts[f"{name}_empty"] + facts[f"{name}_full"] <= 1.001
    assert ({"decode_rate", "resize_rate", _facts.FILE} <= facts.keys()) is (way == "cpu")
    told, other = (_facts.PROCESSES, _facts.THREADS) if way == "cpu" else (_facts.THREADS, _facts.PROCESSES)
    assert facts[told] == 2
    assert other not in facts
    assert (threading.active_count(), torch.get_num_threads()) == (before, threads)
    assert multiprocessing.active_children() == []


@pytest.mark.slow  # test_workers.py has what processes leave
def test_a_case_that_ended_is_gone_when_the_next_begins():
    with Session(case("cached"), OP, Cpu()) as session:
        session.prepare()
        ended = weakref.ref(session._prepared.launch)
    gc.disable()
    try:
        with Session(case("cached"), OP, Cpu()) as session:
            session.prepare()
            assert ended() is None
    finally:
        gc.enable()


@pytest.mark.slow  # test_timed_step.py has such a step
@pytest.mark.parametrize("page_cache", [COLD, rare("warm")])
def test_a_case_that_is_only_checked_reports_no_rates(page_cache):
    """Files that leave the page cache give the same images."""
    with Session(case("two_buffers", page_cache=page_cache), OP, Cpu()) as session:
        session.prepare()
        assert session.check() is None
    facts = dict(session.facts)
    assert facts.keys() <= {_facts.DECODER, _facts.FILE, _facts.CACHED, _facts.PROCESSES}
    assert session.warnings == []


@pytest.mark.slow  # test_timed_step.py has what is found of a step
def test_another_crop_is_wrong(monkeypatch):
    real = ProcessImages.both
    monkeypatch.setattr(
        ProcessImages, "both", lambda self, item: item._replace(data=real(self, Item(item.number + 1, item.data)).data)
    )
    assert checked("two_buffers").startswith("images: number 0 of batch")


@pytest.mark.slow  # the test below has such images, the test above another crop
def test_images_of_another_batch_are_wrong(monkeypatch):
    real = ProcessImages.both
    monkeypatch.setattr(ProcessImages, "both", lambda self, item: item._replace(data=real(self, item).data.flip(0)))
    assert checked("two_buffers").startswith("images: number 0 of batch")


@pytest.mark.slow  # test_timed_step.py has what is found of a step
def test_images_that_are_wrong_only_under_load_are_found(monkeypatch):
    measured_once(monkeypatch)
    real, calls = ProcessImages.both, iter(range(999))

    def overwritten(self, item):
        found = real(self, item)
        return found if next(calls) < 6 else found._replace(data=found.data.flip(0))

    monkeypatch.setattr(ProcessImages, "both", overwritten)
    found = measure(Job(case("two_buffers"), Timing(precision=0.5, max_time=0.01)), OP, Cpu())
    assert found.status == "wrong"
    assert found.error.startswith("images: number 0 of batch")
    assert found.error.endswith("(found in the timed calls; the first call was right)")


@pytest.mark.slow  # test_timed_step.py has what is found of a step
def test_a_loss_that_is_no_number_is_wrong(monkeypatch):
    monkeypatch.setattr(TrainingStep, "__call__", lambda self, item: torch.tensor(torch.nan))
    assert checked("cached") == "loss: it is nan"


@pytest.mark.slow  # test_workers.py has killed processes
def test_a_process_that_is_killed_ends_the_case_and_leaves_no_other(monkeypatch):
    with Session(case("two_buffers"), OP, Cpu()) as session:
        session.prepare()
        assert session.check() is None
        [call] = session.calls()
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        with pytest.raises(StageError, match=r"stage 'prepare' failed: RuntimeError: .* was killed by SIGKILL, most"):
            all(call() is None for _ in range(1000))
    assert session.warnings == []
    assert multiprocessing.active_children() == []


@pytest.mark.slow  # test_workers.py has what fails in a process
def test_a_stage_that_fails_ends_the_case_by_its_name(monkeypatch):
    def fails(_self, _item):
        raise OSError("the disk is gone")

    before = threading.active_count()
    monkeypatch.setattr(ProcessImages, "both", fails)
    with pytest.raises(RuntimeError, match="stage 'prepare' failed: OSError: the disk is gone"):
        checked("two_buffers")
    assert threading.active_count() == before


@pytest.mark.slow  # the test above has the error, the next test that nothing is measured after one
def test_a_stage_that_fails_later_reports_no_rates(monkeypatch):
    measured_once(monkeypatch)
    real, calls = ProcessImages.both, iter(range(9))

    def fails(self, item):
        if next(calls) > 3:
            raise OSError("the disk is gone")
        return real(self, item)

    monkeypatch.setattr(ProcessImages, "both", fails)
    with pytest.raises(RuntimeError, match="stage 'prepare'"):
        measure(Job(case("two_buffers"), Timing(precision=0.5, max_time=0.01)), OP, Cpu())


@pytest.mark.slow
def test_a_step_that_fails_is_not_followed_by_measurements(monkeypatch):
    real, calls = TrainingStep.__call__, iter(range(99))

    def fails(self, item):
        if next(calls) > 12:
            raise ValueError("no such number")
        return real(self, item)

    monkeypatch.setattr(TrainingStep, "__call__", fails)
    measured_once(monkeypatch)
    with pytest.raises(ValueError, match="no such number") as caught:
        measure(Job(case("two_buffers"), Timing(precision=0.5, max_time=0.01)), OP, Cpu())
    assert not hasattr(caught.value, "__notes__")  # of what failed later


@pytest.mark.slow  # test_timed_step.py has such a step
def test_the_step_trains_with_the_images_that_came():
    ctx_case = case("cached")
    with Session(ctx_case, OP, Cpu()) as session:
        session.prepare()
        step = TrainingStep(session._ctx)
        images = torch.randint(256, (4, 32, 32, 3), dtype=torch.uint8)
        before = [weight.detach().clone() for weight in step.weights]
        assert step(Item(0, images)).isfinite()
        given = step.trainer.batch.images
        wanted = (images.double() - torch.tensor(_images.MEAN)) / torch.tensor(_images.DEVIATION)
        assert torch.allclose(given.permute(0, 2, 3, 1).double(), wanted, atol=1e-5)
        assert given.is_contiguous(memory_format=torch.channels_last)
        first = given.clone()
        step._scale(torch.zeros_like(images))
        assert not given.equal(first)
        step._scale(images.permute(0, 3, 1, 2).float())
        assert given.equal(first)
        assert any(not one.equal(other) for one, other in zip(before, step.weights, strict=True))


class Device:
    """A training step on a device that works beside the host: a call waits only if two steps are on their way.

    Its clock goes on only while the host waits for the device.
    """

    SECONDS = 5e-3

    def __init__(self):
        self.now, self.weights = 0.0, []
        self._ends = [0.0]

    def __call__(self, _item):
        while len(self._ends) >= 2:
            self._wait()
        self._ends.append(max([*self._ends, self.now]) + self.SECONDS)

    def finish(self):
        while self._ends:
            self._wait()

    def perf_counter(self):
        return self.now

    def _wait(self):
        self.now = max(self.now, self._ends.pop(0))


def test_steps_that_were_on_their_way_at_the_start_do_not_count(monkeypatch):
    device = Device()
    monkeypatch.setattr(_fed, "time", device)
    parts = SimpleNamespace(step=device, stages=[Stage("read", lambda n: n)], shortest=0.0)
    fed = _fed.FedStep(parts, overlapping=True, log=None)
    fed.pipeline.close()
    assert fed._seconds("") == pytest.approx(Device.SECONDS)
    assert device._ends == []


@pytest.mark.parametrize("log", [SyncLog, AsyncLog])
def test_a_log_has_a_line_a_step(log, tmp_path):
    written = log(tmp_path / "steps")
    weights = [torch.ones(4), torch.full((9,), 2.0)]
    for loss in range(20):
        written(_step.statistics_of(torch.tensor(float(loss)), weights))
    written.close()
    lines = [json.loads(line) for line in (tmp_path / "steps").read_text().splitlines()]
    assert [line["loss"] for line in lines] == list(range(20))
    assert lines[3]["norms"] == [2.0, 6.0]


def test_a_log_that_fails_ends_the_step_after_it(tmp_path, monkeypatch):
    def fails(_file, _values):
        raise OSError("the disk is full")

    monkeypatch.setattr(_step, "_write", fails)
    log = AsyncLog(tmp_path / "steps")
    with pytest.raises(RuntimeError, match="the log failed: OSError"):
        all(log(torch.ones(2)) is None for _ in range(1000))
    log.close()


@pytest.mark.slow
def test_the_rates_alone_are_the_mean_of_before_and_after_the_timed_steps(monkeypatch):
    after, now = _parts.Rates({"prepare": 30.0, "copy": 80.0, "train": 60.0}, {}), []
    rates = iter([_parts.Rates({"prepare": 10.0, "copy": 100.0, "train": 60.0}, {}), after])
    monkeypatch.setattr(_parts.Parts, "rates", lambda _: now.append(len(steps)) or next(rates))
    steps = []
    monkeypatch.setattr(_fed.FedStep, "_seconds", lambda *_: 1.0)
    with Session(case("cached"), OP, Cpu()) as session:
        session.prepare()
        [call] = session.calls()
        steps.extend(call() for _ in range(3))
        session.report()
    assert now == [0, 3]
    facts = dict(session.facts)
    assert [facts[_facts.rate_of(name)] for name in after.stages] == [20, 90, 60]
    assert facts[_facts.EXPECTED] == 20


def test_all_processors_decode_unless_told(monkeypatch):
    monkeypatch.setattr(_parts, "CPU_QUOTA", _parts.Path("nowhere"))
    monkeypatch.setattr(_parts.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert [_parts.workers_of(asked) for asked in (0, 1, 16)] == [16, 1, 16]
    monkeypatch.setattr(_parts.os, "sched_getaffinity", lambda _: {0})
    assert _parts.workers_of(0) == 1


@pytest.mark.parametrize(("text", "count"), [("500000 100000", 5), ("max 100000", 16), ("50000 100000", 1), ("", 16)])
def test_no_more_processes_decode_than_a_container_has_processors(text, count, tmp_path, monkeypatch):
    monkeypatch.setattr(_parts.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(_parts, "CPU_QUOTA", tmp_path / "cpu.max")
    _parts.CPU_QUOTA.write_text(text)
    assert _parts.workers_of(0) == count


def test_without_torchvision_the_way_out_is_told(monkeypatch):
    monkeypatch.setattr(_images.importlib.util, "find_spec", lambda _: None)
    refused = OP.variants["gpu_decode"].unsupported(case("gpu_decode"))
    assert refused.endswith("pip install 'gpu-bench-harness[pipeline]'")
    assert OP.variants["two_buffers"].unsupported(case("two_buffers")) is None


def test_where_files_stay_in_the_page_cache_the_way_out_is_told(monkeypatch):
    monkeypatch.delattr("os.posix_fadvise", raising=False)
    cold = case("two_buffers", page_cache="cold")
    assert OP.variants["two_buffers"].unsupported(cold).endswith("choose page_cache=warm")
    assert OP.variants["two_buffers"].unsupported(case("two_buffers")) is None


def test_without_memory_to_share_the_way_out_is_told(monkeypatch):
    monkeypatch.delattr("os.memfd_create")
    for name in ON_A_CPU:
        refused = OP.variants[name].unsupported and OP.variants[name].unsupported(case(name))
        assert bool(refused) is (name in {"one_buffer", "two_buffers"})
        assert not refused or refused.endswith("use Linux, or the variant cached")


def test_the_small_scenario_has_every_variant_of_a_cpu_and_tiny_models():
    definitions = load(find(["pipeline_small"]), CATALOGUE)
    assert {one.plot for one in definitions} == {"items"}
    small = plan(definitions, CATALOGUE, Selection("cpu")).jobs
    assert {job.case.variant for job in small} == set(ON_A_CPU)
    assert {job.case.values["model"] for job in small} == {"resnet_toy"}
    definitions = load(find(["pipeline"]), CATALOGUE)
    assert {one.plot for one in definitions} == {"items"}
    large = plan(definitions, CATALOGUE, Selection("cuda")).jobs
    assert {job.case.variant for job in large} == OP.variants.keys()
    [decoding] = [claim for one in definitions for claim in one.claims if claim.value == 7036]
    assert decoding.metric == _facts.rate_of("decode")  # the rate of the whole would hide it where the step is slower
    assert {job.case.values["model"] for job in large} == {"resnet50"}
    assert {job.case.values["T"] for job in large} == {0, 1, 2, 4, 8, 12, 14, 16}
