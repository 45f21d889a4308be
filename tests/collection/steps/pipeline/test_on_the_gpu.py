"""Pipelines on a GPU: what decodes, what is copied beside the step, and what a log waits for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness import devices
from harness.collection.steps.pipeline import _facts, _files, _images
from harness.collection.steps.pipeline._images import Copier, Item
from harness.collection.steps.pipeline._shared import SharedBatches, pinned
from harness.collection.steps.pipeline._stages import Crew
from harness.collection.steps.pipeline._step import TrainingStep, statistics_of
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops import Catalogue
from harness.session import Session

pytestmark = pytest.mark.gpu
OP = Catalogue()["image_pipeline"]


def case(variant, dtype="float16"):
    shape = (("B", 8), ("N", 16), ("T", 2))
    return Case(OP.name, variant, dtype, shape, (("model", "resnet_toy"), ("page_cache", "warm")))


@pytest.mark.parametrize("dtype", OP.dtypes)
@pytest.mark.parametrize("variant", OP.variants)
def test_every_variant_is_measured_and_says_what_limits_it(variant, dtype, monkeypatch):
    monkeypatch.setitem(_facts.SHORTEST, "cuda", 0.05)
    job = Job(case(variant, dtype), Timing(precision=0.5, max_time=0.1))
    found = measure(job, OP, devices.kinds()["cuda"])
    if found.status == "unsupported":
        pytest.skip(found.error)
    assert (found.status, found.timer) == ("ok", "steady"), found.error
    assert [warning.message for warning in found.warnings if warning.code == "not-closed"] == []
    facts = dict(found.facts)
    assert facts[_facts.EXPECTED] > 0
    assert facts[_facts.DOUBLED] > 0
    decoder = _facts.DECODERS[int(facts[_facts.DECODER])]
    assert (decoder == "nvJPEG") == (variant == "gpu_decode")


def test_the_gpu_decodes_what_the_cpu_decodes():
    pytest.importorskip("torchvision")
    crew = Crew(2)
    files = _files.made(8, crew)
    crew.close()
    item = Item(0, [_files.read(file, cold=False) for file in files])
    images = _images.GpuImages(torch.device("cuda", 0), 224, 1)
    for _ in range(5):  # what is decoded later must not change what came before
        found = images.decode(item).data
        for image, encoded in zip(found, item.data, strict=True):
            assert (image.cpu().float() - _images.by_pillow(encoded).float()).abs().mean() < 1
    together = images.both(item).data
    wanted = _images.resized_together(found.cpu(), _images.crops(1, 0, 8), 224)
    assert torch.allclose(together.cpu(), wanted, atol=0.1)


def test_a_copy_is_there_when_the_call_returns_and_waits_for_no_step():
    torch.cuda._sleep(10**6)  # loads the kernel
    torch.cuda.synchronize()
    source = torch.randint(256, (64, 224, 224, 3), dtype=torch.uint8).pin_memory()
    copier = Copier(torch.device("cuda", 0))
    copier(Item(0, source))
    busy = torch.cuda.Event()
    torch.cuda._sleep(2 * 10**9)  # about a second of the current stream
    busy.record()
    found = copier(Item(1, source)).data
    assert not busy.query()
    torch.cuda.synchronize()
    assert found.cpu().equal(source)


def test_a_copy_of_images_that_processes_made_is_issued_without_a_wait():
    batches = SharedBatches(64, 1, 224)
    unpin = pinned(batches.memory)
    source = torch.from_numpy(batches.images)[1]
    source.copy_(torch.randint(256, source.shape, dtype=torch.uint8))
    torch.cuda._sleep(10**6)  # loads the kernel
    source.cuda()
    torch.cuda.synchronize()
    torch.cuda._sleep(2 * 10**9)  # about a second
    busy = torch.cuda.Event()
    busy.record()
    found = source.to("cuda", non_blocking=True)  # behind the kernel, in the same stream
    assert not busy.query()
    torch.cuda.synchronize()
    assert found.cpu().equal(source)
    assert source.is_pinned()
    unpin()
    assert not source.is_pinned()
    batches.close()


def _step_of(session: Session) -> TrainingStep:
    """The step of a prepared case. Another one couldn't be captured while the case's stages use the GPU."""
    session.prepare()
    launch: Any = session._ready()[1].launch
    step: TrainingStep = launch._parts.step
    return step


def test_the_graph_trains_with_the_images_that_came():
    with Session(case("cached"), OP, devices.kinds()["cuda"]) as session:
        step = _step_of(session)
        trainer = step.trainer
        images = torch.randint(256, (8, 32, 32, 3), dtype=torch.uint8, device="cuda")
        losses = []
        for given in (torch.zeros_like(images), images):
            step._scale(given)
            with torch.no_grad(), torch.autocast("cuda", torch.float16):
                losses.append(trainer.loss(trainer.called, trainer.batch).item())
        other, want = losses
        before = [weight.detach().clone() for weight in step.weights]
        assert abs(step(Item(0, images)).item() - want) < abs(other - want) / 4
        assert any(not one.equal(now) for one, now in zip(before, step.weights, strict=True))


@pytest.mark.parametrize("variant", ["cached", "gpu_decode"])
def test_only_beside_a_decoder_on_the_gpu_the_step_is_no_graph(variant):
    if reason := OP.variants[variant].unsupported and OP.variants[variant].unsupported(case(variant)):
        pytest.skip(reason)
    with Session(case(variant), OP, devices.kinds()["cuda"]) as session:
        step = _step_of(session)
        assert (step._step == step.trainer.loss_of_step) is (variant == "gpu_decode")


def test_neither_step_nor_statistics_wait_for_the_device():
    with Session(case("cached"), OP, devices.kinds()["cuda"]) as session:
        step = _step_of(session)
        images = torch.randint(256, (8, 32, 32, 3), dtype=torch.uint8, device="cuda")
        for number in range(3):
            statistics_of(step(Item(number, images)), step.weights)
        step.finish()
        torch.cuda.set_sync_debug_mode("error")
        try:
            statistics_of(step(Item(3, images)), step.weights)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.alone
def test_engines_are_asked_once_nvjpeg_is_loaded():
    pytest.importorskip("torchvision")
    crew = Crew(1)
    [file] = _files.made(1, crew)
    crew.close()
    images = _images.GpuImages(torch.device("cuda", 0), 32, 1)
    images.decode(Item(0, [_files.read(file, cold=False)]))
    engines = _facts.jpeg_engines()
    assert engines is not None
    assert engines >= 0
